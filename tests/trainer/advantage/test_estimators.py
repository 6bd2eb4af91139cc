"""Tests of every estimator against values computed by hand; groups are formed by id only."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from atroposlib.errors import ConfigError, InvalidGroup
from example_trainer.advantage import estimators
from example_trainer.advantage.estimators import ESTIMATORS
from example_trainer.settings.loss import AdvantageSettings
from tests.examples import examples

EVERY = sorted(ESTIMATORS)


def compute(name, rewards, groups, **fields):
    lengths = fields.pop("lengths", None)
    cfg = AdvantageSettings(advantage=name, **fields)
    return estimators.compute(rewards, groups, cfg, lengths=lengths)


# --- grpo, as it is without any settings --------------------------------------------------


def test_rewards_are_normalised_by_the_population_deviation_of_their_group():
    # mean 0.5, population std 0.5; the sample std would be 0.577 and give 0.866
    assert estimators.compute([0, 0, 1, 1], ["a"] * 4) == [-1, -1, 1, 1]


def test_a_group_of_one_keeps_its_raw_reward():
    assert estimators.compute([0.3, 1.0, 0.0], ["a", "b", "b"]) == [0.3, 1.0, -1.0]


def test_the_deviation_has_a_floor():
    low, high = estimators.compute([0.0, 1e-9], ["a", "a"])
    assert math.isclose(high, 0.5e-9 / 1e-8) and low == -high


@pytest.mark.parametrize("name", ["grpo", "lite_ppo"])
def test_eps_keeps_advantages_of_nearly_equal_rewards_small(name):
    rewards, groups = [0.0, 1e-6], ["a", "a"]  # population std 5e-7
    assert compute(name, rewards, groups) == [-1.0, 1.0]
    _, high = compute(name, rewards, groups, advantage_eps=1e-4)
    assert math.isclose(high, 5e-7 / (5e-7 + 1e-4))
    _, high = compute(name, [0.0, 1.0], groups, advantage_eps=1e-4)
    assert math.isclose(high, 0.5 / 0.5001)


# --- the others ---------------------------------------------------------------------------

REWARDS, GROUPS = [1.0, 5.0, 0.0, 0.0, 1.0, 3.0], ["a", "b", "a", "a", "a", "b"]
# a: 1, 0, 0, 1 (mean 0.5, std 0.5); b: 5, 3 (mean 4, std 1). All: mean 10/6, variance 36/6 -
# (10/6)^2 = 116/36. Centred: 0.5, 1, -0.5, -0.5, 0.5, -1 (mean 0, variance 3/6).
STD = math.sqrt(116) / 6
BY_HAND = {
    "grpo": [1, 1, -1, -1, 1, -1],
    "dr_grpo": [0.5, 1, -0.5, -0.5, 0.5, -1],
    "rloo": [2 / 3, 2, -2 / 3, -2 / 3, 2 / 3, -2],  # 1 - (0 + 0 + 1) / 3; 5 - 3
    "lite_ppo": [x / STD for x in (0.5, 1, -0.5, -0.5, 0.5, -1)],
    "maxrl": [1, 0.25, -1, -1, 1, -0.25],
    "reinforce_pp": [(r - 10 / 6) / STD for r in REWARDS],
    "reinforce_pp_baseline": [x / math.sqrt(0.5) for x in (0.5, 1, -0.5, -0.5, 0.5, -1)],
    "role": [r - 10 / 6 for r in REWARDS],  # a role that is seen first, of all rows
    "gae": REWARDS,
    "raw": REWARDS,
}


@pytest.mark.parametrize("name", EVERY)
def test_every_estimator_by_hand(name):
    assert compute(name, REWARDS, GROUPS) == pytest.approx(BY_HAND[name])


@pytest.mark.parametrize(
    "name", sorted(set(EVERY) - {"reinforce_pp", "reinforce_pp_baseline", "role"})
)
def test_a_group_of_one_has_no_baseline_in_any_estimator(name):
    assert compute(name, [0.25, 1.0, 0.0], ["alone", "b", "b"])[0] == 0.25


def test_batch_normalisation_keeps_the_raw_reward_of_a_group_of_one():
    """Centred: 2 (alone), 1, -1; mean 2/3, variance 6/3 - 4/9 = 14/9."""
    found = compute("reinforce_pp_baseline", [2.0, 3.0, 1.0], ["alone", "b", "b"])
    assert found == pytest.approx([(x - 2 / 3) / math.sqrt(14 / 9) for x in (2, 1, -1)])


def test_batch_normalisation_weighs_rows_by_their_tokens():
    """Rewards 0 on 3 tokens, 1 on 1 token: mean 1/4, std sqrt(3)/4."""
    found = compute("reinforce_pp", [0.0, 1.0], ["a", "b"], lengths=[3, 1])
    assert found == pytest.approx([-1 / math.sqrt(3), math.sqrt(3)])


def test_batch_normalisation_may_follow_any_estimator():
    """Dr. GRPO leaves 0.5, 1, ... with variance 1/2; see BY_HAND."""
    found = compute("dr_grpo", REWARDS, GROUPS, advantage_norm="batch")
    assert found == pytest.approx(BY_HAND["reinforce_pp_baseline"])


def test_token_normalisation_can_replace_row_normalisation():
    cfg = AdvantageSettings(advantage="reinforce_pp")
    scalars = estimators.compute([0.0, 1.0], ["a", "b"], cfg, normalise=False)
    assert scalars == [0.0, 1.0] and estimators.normalises(cfg)
    per_token = estimators.normalise_tokens([[scalars[0]] * 3, [scalars[1]]])
    at_once = estimators.compute([0.0, 1.0], ["a", "b"], cfg, lengths=[3, 1])
    assert per_token == [[at_once[0]] * 3, [at_once[1]]]


def test_normalised_tokens_have_mean_zero_and_deviation_one():
    found = estimators.normalise_tokens([[1.0, 2.0], [], [6.0]])
    # mean 3, variance (4 + 1 + 9) / 3
    std = math.sqrt(14 / 3)
    assert [x for row in found for x in row] == pytest.approx([-2 / std, -1 / std, 3 / std])
    assert found[1] == []
    assert estimators.normalise_tokens([[0.1] * 3, [0.1]]) == [[0.0] * 3, [0.0]]
    assert estimators.normalise_tokens([]) == [] and estimators.normalise_tokens([[]]) == [[]]


def test_each_group_may_be_normalised_over_its_own_tokens():
    found = estimators.normalise_tokens([[1.0], [3.0], [9.0, 9.0]], ["a", "a", "b"])
    assert found == [[-1.0], [1.0], [0.0, 0.0]]
    at_once = compute("raw", [1.0, 3.0, 9.0], ["a", "a", "b"], advantage_norm="group")
    assert at_once == pytest.approx([-1.0, 1.0, 0.0])


# --- what holds for all -------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"raw", "gae"}))
def test_equal_rewards_give_exactly_zero(name):
    assert compute(name, [0.1] * 7, ["a"] * 7) == [0.0] * 7


ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5).map(lambda i: i / 5)),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("name", EVERY)
@examples(30)
@given(rows=ROWS, rng=st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(name, rows, rng: random.Random):
    straight = compute(name, [r for _, r in rows], [g for g, _ in rows])
    order = list(range(len(rows)))
    rng.shuffle(order)
    shuffled = compute(name, [rows[i][1] for i in order], [rows[i][0] for i in order])
    assert [straight[i] for i in order] == shuffled


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@examples(30)
@given(rows=ROWS, lost=st.integers(0, 19))
def test_a_lost_member_changes_its_own_group_only(name, rows, lost):
    """The groups of the others stay as they were, wherever the gap is."""
    lost %= len(rows)
    group = rows[lost][0]
    whole = compute(name, [r for _, r in rows], [g for g, _ in rows])
    rest = rows[:lost] + rows[lost + 1 :]
    after = compute(name, [r for _, r in rest], [g for g, _ in rest])
    kept = whole[:lost] + whole[lost + 1 :]
    assert [a for a, (g, _) in zip(after, rest) if g != group] == [
        a for a, (g, _) in zip(kept, rest) if g != group
    ]


def test_groups_are_formed_by_id_not_by_a_fixed_number_of_rows():
    """Three rows of one prompt, four of the next: AReaL's slices of four would mix them."""
    found = compute("grpo", [1, 0, 0, 1, 1, 1, 1], ["a"] * 3 + ["b"] * 4)
    assert found[3:] == [0.0] * 4
    assert found[:3] == pytest.approx([math.sqrt(2), -math.sqrt(0.5), -math.sqrt(0.5)])


@pytest.mark.parametrize("name", EVERY)
@examples(30)
@given(rewards=st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=6))
def test_any_finite_rewards_give_finite_advantages(name, rewards):
    if name == "maxrl":  # of chances
        rewards = [abs(reward) for reward in rewards]
    found = compute(name, rewards, [i % 2 for i in range(len(rewards))])
    assert all(math.isfinite(x) for x in found)


def test_maxrl_weighs_a_success_by_how_rare_it_is_and_refuses_rewards_below_0():
    assert compute("maxrl", [1, 0, 0, 0], ["a"] * 4) == [3.0, -1.0, -1.0, -1.0]
    assert compute("maxrl", [1, 1, 1, 0], ["a"] * 4) == pytest.approx([1 / 3] * 3 + [-1.0])
    assert compute("maxrl", [0, 0], ["a"] * 2) == [0.0, 0.0]
    with pytest.raises(ConfigError, match="from 0 up"):
        compute("maxrl", [1, -1], ["a"] * 2)


# --- what may be passed -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_rewards_may_be_a_list_a_tuple_an_array_or_a_tensor(kind):
    found = estimators.compute(kind([0.0, 1.0]), kind([7, 7]))
    assert found == [-1.0, 1.0] and all(type(x) is float for x in found)
    assert estimators.has_varied_rewards(kind([0.0, 1.0]), kind([7, 7])) == [True, True]


def test_a_list_of_tensors_is_a_list_of_numbers():
    ones = [torch.tensor(1), torch.tensor(1)]
    assert estimators.compute([torch.tensor(0.0), np.float32(1.0)], ones) == [-1.0, 1.0]


@pytest.mark.parametrize("ids", [[("env", 1)] * 2, [None, None], [frozenset("a")] * 2, "aa"])
def test_group_ids_may_be_anything_hashable(ids):
    assert estimators.compute([True, False], ids) == [1.0, -1.0]


def test_settings_may_be_any_object_with_some_of_the_fields():
    cfg = SimpleNamespace(advantage="rloo", reward_scale=10.0)
    assert estimators.compute([1.0, 0.0], ["a", "a"], cfg) == [10.0, -10.0]


def test_an_empty_batch_is_empty():
    assert all(compute(name, [], []) == [] for name in EVERY)
    assert estimators.has_varied_rewards([], []) == []


@pytest.mark.parametrize(
    "wrong", [float("nan"), float("inf"), -float("inf"), None, "1", 10**400]
)
def test_invalid_reward_is_rejected_with_its_row_name(wrong):
    with pytest.raises(InvalidGroup, match=r"rewards\[2\]"):
        estimators.compute([0.0, 1.0, wrong], ["a"] * 3)
    with pytest.raises(InvalidGroup, match=r"rewards\[2\]"):
        estimators.has_varied_rewards([0.0, 1.0, wrong], ["a"] * 3)


def test_lists_of_different_length_are_refused():
    with pytest.raises(InvalidGroup, match="group_ids: 1 entries for 2 rows"):
        estimators.compute([0.0, 1.0], ["a"])
    with pytest.raises(InvalidGroup, match="lengths"):
        estimators.compute([0.0, 1.0], ["a", "a"], lengths=[1])
    with pytest.raises(InvalidGroup, match="finish_reasons"):
        estimators.compute([0.0, 1.0], ["a", "a"], finish_reasons=["stop"])


def test_an_unknown_estimator_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="there are: dr_grpo, gae, grpo"):
        estimators.compute([1.0], ["a"], SimpleNamespace(advantage="gpo"))


# --- dynamic filtering --------------------------------------------------------------------


def test_a_group_varies_if_any_two_rewards_differ():
    rewards, groups = [1, 0, 1, 0, 1, 0.5], ["even", "odd", "even", "odd", "odd", "alone"]
    assert estimators.has_varied_rewards(rewards, groups) == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_rewards_that_differ_by_rounding_differ():
    assert estimators.has_varied_rewards([0.3, 0.1 + 0.2], ["a", "a"]) == [True, True]
