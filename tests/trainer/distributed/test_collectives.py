"""Values and sums over ranks."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_all_ranks_know_what_rank_0_shared_and_what_they_add_up_to(ranks):
    assert ranks[0]["values"] == ranks[1]["values"]
    assert ranks[0]["values"] == {"shared": {"a": [1, 2.5], "b": None}, "sum": [2.0, 1.0]}
