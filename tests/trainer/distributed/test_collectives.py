"""Values and sums over ranks."""

from __future__ import annotations

import pytest


@pytest.mark.alone
def test_all_ranks_get_the_value_of_rank_0_and_the_sum_of_all(ranks):
    assert ranks[0]["values"] == ranks[1]["values"]
    assert ranks[0]["values"] == {"shared": {"a": [1, 2.5], "b": None}, "sum": [2.0, 1.0]}
