"""Advantages per token by hand: discounts, token rewards, values, returns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from example_trainer.advantage.gae import token_advantages
from example_trainer.settings.config import TrainingConfig
from tests.examples import examples

GAE = SimpleNamespace(advantage="gae", gamma=0.5, gae_lambda=0.8)


def test_without_values_and_discounts_every_token_has_the_advantage_of_its_row():
    cfg = TrainingConfig(model_name="m", advantage="gae")
    found, returns = token_advantages([2.0, -1.0, 5.0], [3, 1, 0], cfg)
    assert found == returns == [[2.0, 2.0, 2.0], [-1.0], []]


def test_without_values_the_advantage_is_discounted_by_gamma_lambda():
    found, _ = token_advantages([1.0], [3], GAE)
    assert found == [pytest.approx([0.16, 0.4, 1.0])]


def test_discounts_are_those_of_gae_only():
    cfg = SimpleNamespace(advantage="grpo", gamma=0.5, gae_lambda=0.8)
    assert token_advantages([1.0], [3], cfg)[0] == [[1.0, 1.0, 1.0]]


def test_with_values_by_hand():
    """V = 1, 2, 3; reward 4 at the end; gamma 0.5, lambda 0.8.

    delta = 0.5 x 2 - 1 = 0, 0.5 x 3 - 2 = -0.5, 4 - 3 = 1.
    A_2 = 1; A_1 = -0.5 + 0.4 x 1 = -0.1; A_0 = 0 + 0.4 x -0.1 = -0.04.
    """
    found, returns = token_advantages([4.0], [3], GAE, values_R_T=[[1.0, 2.0, 3.0]])
    assert found == [pytest.approx([-0.04, -0.1, 1.0])]
    assert returns == [pytest.approx([0.96, 1.9, 4.0])]


def test_token_rewards_are_summed_from_their_position_to_the_end():
    """A KL of 0.1 per token off an advantage of 1: 1 - 0.3, 1 - 0.2, 1 - 0.1."""
    rewards = [[-0.1, -0.1, -0.1]]
    cfg = SimpleNamespace(advantage="grpo")
    found, _ = token_advantages([1.0], [3], cfg, token_rewards_R_T=rewards)
    assert found == [pytest.approx([0.7, 0.8, 0.9])]
    assert rewards == [[-0.1, -0.1, -0.1]]  # not written to


@examples(50)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(-5, 5), st.floats(0, 1))
def test_gae_at_lambda_one_is_the_discounted_return_minus_the_value(values, reward, gamma):
    cfg = SimpleNamespace(advantage="gae", gamma=gamma, gae_lambda=1.0)
    n = len(values)
    found, returns = token_advantages([reward], [n], cfg, values_R_T=[values])
    expected = [gamma ** (n - 1 - t) * reward for t in range(n)]
    assert returns[0] == pytest.approx(expected, abs=1e-9)
    assert found[0] == pytest.approx([e - v for e, v in zip(expected, values)], abs=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_rewards_R_T": [[0.0]]},
        {"values_R_T": [[0.0]]},
        {"token_rewards_R_T": [[0.0]], "values_R_T": [[0.0]]},
    ],
)
def test_lists_of_different_length_are_refused(wrong):
    with pytest.raises(ValueError):
        token_advantages([1.0], [2], GAE, **wrong)
    with pytest.raises(ValueError):
        token_advantages([1.0, 2.0], [1], GAE)
