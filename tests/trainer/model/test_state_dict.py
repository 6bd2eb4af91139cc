"""Whole weights: merged, trained only, and copies."""

from __future__ import annotations

import pytest
import torch

from example_trainer.model import state_dict
from example_trainer.model.state_dict import TensorSpec, layout
from tests.trainer.rows import SEQUENCES


def test_merged_weights_score_as_the_adapter_does(adapted, policy):
    with_adapter = adapted(lora_r=4, lora_alpha=12)
    before = with_adapter.logprobs_of(SEQUENCES)
    merged = state_dict.full_weights(with_adapter)
    assert merged.keys() == policy.model.state_dict().keys()
    assert with_adapter.logprobs_of(SEQUENCES) == before
    plain = policy.logprobs_of(SEQUENCES)
    state_dict.load_full_weights(policy, merged)
    for ours, theirs, untrained in zip(policy.logprobs_of(SEQUENCES), before, plain):
        assert ours == pytest.approx(theirs, abs=1e-4)
        assert ours != pytest.approx(untrained, abs=1e-2)


def test_trained_weights_are_enough_to_continue(adapted):
    policy, fresh = adapted(seed=1), adapted(seed=2)
    kept = state_dict.trained_weights(policy)
    assert len(kept) == len(policy.parameters())
    state_dict.load_full_weights(fresh, kept)
    assert fresh.logprobs_of(SEQUENCES) == policy.logprobs_of(SEQUENCES)


@pytest.mark.alone
def test_full_weights_round_trip_through_shards(ranks, policy):
    first, second = (found["weights"] for found in ranks)
    assert first["names"] == sorted(policy.model.state_dict()) and second["names"] == []
    assert first["tied"] and first["float32"] and first["stepped"] and second["stepped"]
    assert first["norm"] == second["norm"] > 0
    assert first["same on two"] and second["same on two"]
    assert first["on one"] < 1e-5
    assert 2 * first["shard"][0] - policy.parameters()[0].shape[0] in (0, 1)
    for found in (first, second):
        assert "not those of the model" in found["refused"]


def test_full_weights_of_a_single_rank_are_copies(policy):
    whole = state_dict.full_weights(policy)
    before = policy.logprobs_of([[5, 6, 7]])
    for tensor in whole.values():
        tensor.zero_()
    assert policy.logprobs_of([[5, 6, 7]]) == before
    state_dict.load_full_weights(policy, whole)
    assert not any(parameter.any() for parameter in policy.parameters())


def test_tied_head_is_exported_separately_if_untied(policy):
    assert "lm_head.weight" in {t.name for t in layout(policy, untie_head=True)}


def test_bytes_of_a_layout_are_those_of_its_tensors():
    assert TensorSpec("w", torch.bfloat16, (3, 5)).bytes == 30


def test_weights_are_collected_in_the_precision_asked_for_and_ties_once(policy):
    exact, low = (state_dict.full_weights(policy, d) for d in (torch.float32, torch.bfloat16))
    assert {tensor.dtype for tensor in low.values()} == {torch.bfloat16}
    assert all(torch.equal(exact[name].bfloat16(), low[name]) for name in exact)
    assert low["model.embed_tokens.weight"] is low["lm_head.weight"]
