from __future__ import annotations

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer import model
from tests.trainer.rows import row

ROWS = [row([5, 6, 7], [8, 9, 10]), row([5, 6, 7], [8, 11])]


def gradient(policy):
    for plan in policy.plan(ROWS):
        policy.score(plan).logprobs.sum().backward()
    return [p.grad for p in policy.parameters()]


def test_recomputing_activations_changes_no_gradient(config, policy):
    saving = model.load(config(gradient_checkpointing=True))
    assert saving.model.training and not policy.model.training
    for ours, theirs in zip(gradient(saving), gradient(policy)):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_parameters(config, policy):
    low = model.load(config(dtype="bfloat16"))
    assert {p.dtype for p in low.parameters()} == {torch.float32}
    (exact,) = policy.logprobs_of([ROWS[0].tokens])
    (rounded,) = low.logprobs_of([ROWS[0].tokens])
    distance = max(abs(a - b) for a, b in zip(exact, rounded))
    assert 0 < distance < config(dtype="bfloat16").logprob_tolerance
    assert all(g.dtype is torch.float32 for g in gradient(low))


def test_rows_are_never_longer_than_the_model_allows(config):
    assert model.load(config(seq_len=64)).max_tokens_per_row == 64
    assert model.load(config(seq_len=2048)).max_tokens_per_row == 256  # of the tiny model


def test_a_model_that_is_not_there_is_named(config):
    with pytest.raises(ConfigError, match="no-such-model"):
        model.load(config(model_name="./no-such-model"))


def test_a_model_that_changes_its_logits_after_the_head_is_refused(policy, monkeypatch):
    forward = type(policy.model).forward

    def softcapped(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        output.logits = 5 * torch.tanh(output.logits / 5)
        return output

    monkeypatch.setattr(type(policy.model), "forward", softcapped)
    with torch.no_grad():
        policy.parameters()[0].mul_(20)  # or the cap changes too little to see
    with pytest.raises(ConfigError, match="after the output head"):
        model.probe_sharing(policy)
