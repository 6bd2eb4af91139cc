"""Sharded over two ranks: gradients, low precision, and tensor parallelism."""

from __future__ import annotations

import pytest


@pytest.mark.alone
def test_two_ranks_have_the_gradient_of_one(ranks):
    assert ranks[0]["gradients"] == ranks[1]["gradients"]
    assert len(ranks[0]["gradients"]) == 5
    assert all(distance < 1e-5 for distance in ranks[0]["gradients"].values())


@pytest.mark.alone
def test_two_ranks_have_the_gradient_of_one_also_through_pictures(ranks):
    assert all(distance < 1e-5 for found in ranks for distance in found["pictured"].values())


@pytest.mark.alone
def test_ranks_compute_in_bfloat16_and_add_up_in_float32(ranks):
    for found in ranks:
        assert found["low_precision"]["float32"]
        assert 1e-4 < found["low_precision"]["distance"] < 0.05
        assert found["low_precision"]["of one rank"] < 5e-3


@pytest.mark.alone
def test_two_ranks_that_share_matrices_take_the_steps_of_one(ranks):
    for rank in ranks:
        found = rank["matrices"]
        assert found["rows"] == [0, 1]  # both compute all of them
        for model in ("model", "qwen3"):
            ours, theirs = found[model]["norms"]
            assert ours == pytest.approx(theirs, rel=1e-5)
            assert found[model]["logprobs"] < 1e-5 and found[model]["weights"] < 1e-6
        assert found["model"]["query"] == [64, 128]  # of 128 rows
    assert ranks[0]["matrices"]["resumed"]


@pytest.mark.alone
def test_models_whose_matrices_cannot_be_shared_are_refused(ranks):
    for rank in ranks:
        found = rank["matrices"]
        assert (
            "GPT2LMHeadModel cannot be trained with tensor_parallel 2" in found["gpt2 refused"]
        )
        assert "moe_tp_experts" in found["mixtral refused"]
        assert "an adapter is trained" in found["model refused"]
