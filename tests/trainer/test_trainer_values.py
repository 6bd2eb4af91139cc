"""The value model: a scalar head, planned and packed as the policy is."""

from __future__ import annotations

import pytest
import torch

from example_trainer.model.critic import load_value_model, scored_row
from tests.trainer.rows import BRANCHING, MULTI_TURN, flat


@pytest.fixture
def critic(config):
    """Its head is not zero any more, as after some training."""
    made = load_value_model(config())
    with torch.no_grad():
        torch.nn.init.normal_(made.model.score.weight)
    return made


def test_first_values_are_zero(config):
    fresh = load_value_model(config())
    assert not fresh.padded and fresh.share_prefixes
    assert fresh.trained_values(BRANCHING[:1]) == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("padded", [False, True])
def test_a_value_stands_where_the_logprob_of_its_token_does(critic, padded):
    critic.padded, critic.attention_crossover = padded, float("inf")
    rows = [*BRANCHING, *MULTI_TURN]
    for row, found in zip(rows, critic.trained_values(rows)):
        every = critic.model(torch.tensor([row.tokens]), use_cache=False).logits[0, :, 0]
        assert found == pytest.approx(every[row.trained].tolist(), abs=1e-5)


def test_values_have_gradients_to_head_and_decoder(critic):
    (plan,) = critic.plan(BRANCHING)
    found, mask = critic.score(plan)
    assert found.shape == mask.shape == plan.shape
    (found * mask).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in critic.parameters())


def test_the_score_of_a_whole_sequence_is_that_of_its_last_token(critic):
    tokens = [5, 6, 7]
    ((found,),) = critic.trained_values([scored_row(tokens, "g")])
    every = critic.model(torch.tensor([tokens]), use_cache=False).logits[0, :, 0]
    assert found == pytest.approx(every[-1].item(), abs=1e-5)
    (plan,) = critic.plan([scored_row(tokens, "g")])
    assert plan.length == len(tokens)


def test_what_is_saved_keeps_its_head_when_loaded(critic, config, tmp_path):
    critic.model.save_pretrained(tmp_path / "critic")
    critic.tokenizer.save_pretrained(tmp_path / "critic")
    again = load_value_model(config(), str(tmp_path / "critic"))
    before, after = (flat(one.trained_values(MULTI_TURN)) for one in (critic, again))
    assert after == pytest.approx(before, rel=1e-5)


def test_bfloat16_values_come_from_a_float32_head(config):
    low = load_value_model(config(dtype="bfloat16"))
    (plan,) = low.plan(MULTI_TURN)
    found, _ = low.score(plan)
    assert found.dtype is torch.float32
