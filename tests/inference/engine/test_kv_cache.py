"""Memory of keys and values."""

from __future__ import annotations

from hypothesis import given, strategies as st

from atroposlib.inference.engine.kv_cache import COLUMN_STEP, plan_capacity


@given(
    st.tuples(st.integers(0, 64), st.integers(0, 8)),
    st.tuples(st.integers(1, 64), st.integers(1, 512)),
)
def test_the_planned_cache_capacity_covers_the_need_within_about_the_budget(have, need):
    budget = max(need[0] * need[1], have[0] * have[1] * COLUMN_STEP)
    rows, columns = plan_capacity((have[0], have[1] * COLUMN_STEP), need, budget)
    assert rows >= need[0] and columns >= need[1]
    assert rows * columns <= budget + rows * COLUMN_STEP  # columns come in steps
