"""The first exact choice in a given order: compared with brute force."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from atroposlib.api.decisions import exact_fill
from atroposlib.api.decisions.exact_fill import first_exact, is_feasible, min_sum
from tests.examples import examples

MANY = examples(3000)
keys = st.lists(
    st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([1, 2, 3, 4, 6, 8, 12])),
    max_size=9,
)
some_needs = st.dictionaries(st.sampled_from([0, 1, 2]), st.integers(0, 8), max_size=3)


def brute_force(keys, target, needs, start=0, taken=()):
    """Every subset, in the order in which taking a group comes before leaving it."""
    if start == len(keys):
        rows = [keys[i] for i in taken]
        exact = bool(rows) and sum(size for _, size in rows) == target
        kept = all(sum(s for env, s in rows if env == e) >= n for e, n in needs.items())
        return list(taken) if exact and kept else None
    first = brute_force(keys, target, needs, start + 1, (*taken, start))
    return first or brute_force(keys, target, needs, start + 1, taken)


@pytest.mark.slow
@given(keys=keys, target=st.integers(1, 40))
@MANY
def test_without_minima_the_selection_equals_that_of_brute_force(keys, target):
    expected = brute_force(keys, target, {})
    assert first_exact(keys, target) == expected
    assert is_feasible(Counter(keys), target) == (expected is not None)


@pytest.mark.slow
@given(keys=keys, target=st.integers(1, 40), needs=some_needs)
@MANY
def test_with_minima_the_selection_equals_that_of_brute_force(keys, target, needs):
    expected = brute_force(keys, target, needs)
    assert first_exact(keys, target, needs) == expected
    assert is_feasible(Counter(keys), target, needs) == (expected is not None)


@given(sizes=st.sets(st.integers(1, 9), max_size=3), need=st.integers(0, 30))
@examples(300)
def test_the_least_sum_equals_that_of_exhaustive_counting(sizes, need):
    reached = {0}
    for total in range(1, 41):
        if any(total - size in reached for size in sizes):
            reached.add(total)
    expected = min((total for total in reached if total >= need), default=None)
    assert min_sum(sizes, need, 40) == expected


def test_a_batch_of_zero_sequences_is_not_formed():
    assert first_exact([(None, 1)], 0) is None
    assert not is_feasible({(None, 1): 1}, 0)


def test_a_group_without_rows_is_never_selected():
    assert first_exact([(None, 0), (None, 2)], 2) == [1]


@pytest.mark.parametrize(
    ("keys", "target", "needs", "bound"),
    [
        ([(None, 16)] * 20_000, 256, {}, 2),
        ([(i % 4, 16) for i in range(20_000)], 256, {0: 64, 1: 64}, 2),
        ([(i % 7, (6, 10, 15)[i % 3]) for i in range(20_000)], 1000, {0: 99, 3: 200}, 60),
        ([(i % 16, i % 61 + 3) for i in range(20_000)], 1024, {i: 50 for i in range(16)}, 400),
    ],
)
def test_exact_fill_of_a_long_queue_needs_few_lookups(monkeypatch, keys, target, needs, bound):
    looks = 0
    reaches = exact_fill._reaches

    def counted(*arguments):
        nonlocal looks
        looks += 1
        return reaches(*arguments)

    monkeypatch.setattr(exact_fill, "_reaches", counted)
    assert first_exact(keys, target, needs) is not None
    assert looks <= bound


def test_a_huge_batch_of_large_groups_costs_no_more_than_a_small_one():
    assert is_feasible({(0, 2**20): 4, (1, 2**21): 8}, 2**24, {0: 2**21})
    assert not is_feasible({(0, 2**20): 4}, 2**24 - 1)
    assert min_sum([2**20, 2**21], 3 * 2**20 + 1, 2**24) == 4 * 2**20
    assert min_sum([], 1, 10) is None and min_sum([], 0, 10) == 0
