"""Sharded over two ranks: gradients, and low precision."""

from __future__ import annotations

import pytest


@pytest.mark.alone
def test_two_ranks_have_the_gradient_of_one(ranks):
    assert ranks[0]["gradients"] == ranks[1]["gradients"]
    assert len(ranks[0]["gradients"]) == 5
    assert all(distance < 1e-5 for distance in ranks[0]["gradients"].values())


@pytest.mark.alone
def test_ranks_compute_in_bfloat16_and_add_up_in_float32(ranks):
    for found in ranks:
        assert found["low_precision"]["float32"]
        assert 1e-4 < found["low_precision"]["distance"] < 0.05
