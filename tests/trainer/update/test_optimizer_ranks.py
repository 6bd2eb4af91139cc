"""The optimizer over two ranks: state, and a gradient that is not finite."""

from __future__ import annotations

import pytest

from tests.trainer import two_ranks


@pytest.mark.alone
@pytest.mark.parametrize("optimizer", two_ranks.OPTIMIZERS)
def test_optimizer_state_goes_from_two_ranks_to_one_and_back(ranks, optimizer):
    found = ranks[0]["optimizers"][optimizer]
    assert found["two go on"] and found["taken over"] and found["handed back"]
    assert found["distance"] < 1e-5
    assert (
        found["entries"]
        == {
            "adamw": ["exp_avg", "exp_avg_sq", "step"],
            "adafactor": ["RMS", "exp_avg_sq", "exp_avg_sq_col", "exp_avg_sq_row"],
            "sgd": [],
        }[optimizer]
    )


@pytest.mark.alone
def test_state_of_another_optimizer_is_refused_on_every_rank(ranks):
    for found in ranks:
        assert "the saved state is of SGD" in found["optimizers"]["refused"]


@pytest.mark.alone
def test_nonfinite_gradient_on_one_rank_is_skipped_on_all(ranks):
    for found in ranks:
        assert found["not_finite"] == {"stepped": False, "nan": True, "unchanged": True}
