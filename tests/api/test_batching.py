"""Batches are exact, whole, oldest first and within minima: compared with brute force."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.api.batching import oldest_first, select
from atroposlib.api.records import GroupSummary

SMALL = settings(max_examples=400, deadline=None)
keys = st.lists(
    st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([1, 2, 3, 4, 6, 8, 12])),
    max_size=9,
)
some_needs = st.dictionaries(st.sampled_from([0, 1, 2]), st.integers(0, 8), max_size=3)


def brute_force(keys, target, needs):
    """The first exact subset in lexicographic order, where taking comes before leaving."""
    for taken in product((True, False), repeat=len(keys)):
        rows = [key for key, take in zip(keys, taken) if take]
        if rows and sum(size for _, size in rows) == target:
            if all(sum(s for env, s in rows if env == e) >= n for e, n in needs.items()):
                return [i for i, take in enumerate(taken) if take]
    return None


@given(keys=keys, target=st.integers(1, 40))
@SMALL
def test_without_minima_the_choice_is_that_of_brute_force(keys, target):
    assert oldest_first(keys, target) == brute_force(keys, target, {})


@given(keys=keys, target=st.integers(1, 40), needs=some_needs)
@SMALL
def test_with_minima_the_choice_is_that_of_brute_force(keys, target, needs):
    assert oldest_first(keys, target, needs) == brute_force(keys, target, needs)


def queue_of(*rows):
    return [GroupSummary(gid, env, n_seq) for gid, (env, n_seq) in enumerate(rows, start=1)]


def test_equal_groups_leave_in_the_order_they_came():
    assert select(queue_of(*[(0, 4)] * 5), 8, {}).gids == (1, 2)


def test_a_size_that_does_not_divide_the_largest_is_served():
    # 8 and 12 of one environment: the original waited for ever (D11).
    assert select(queue_of((0, 8), (0, 12), (0, 12), (0, 8)), 20, {}).gids == (1, 2)


def test_the_oldest_group_waits_if_no_exact_batch_contains_it():
    assert select(queue_of((0, 3), (0, 4), (0, 4)), 8, {}).gids == (2, 3)


def test_groups_without_env_are_served_beside_a_minimum():
    assert select(queue_of((None, 4), (0, 4), (None, 4)), 8, {0: 4}).gids == (1, 2)


def test_ten_thousand_groups_of_awkward_sizes_are_no_problem():
    queue = queue_of(*[(i % 7, (6, 10, 15)[i % 3]) for i in range(10_000)])
    chosen = set(select(queue, 1000, {0: 100, 3: 200}).gids)
    rows = [group for group in queue if group.gid in chosen]
    assert sum(group.n_seq for group in rows) == 1000
    assert sum(group.n_seq for group in rows if group.env == 3) >= 200


def test_the_reason_counts_what_is_missing():
    assert select([], 8, {}).blocked_reason == "the queue is empty: waiting for scored groups"
    reason = select(queue_of((0, 4)), 8, {}).blocked_reason
    assert reason == "4 of 8 sequences queued: waiting for scored groups"


def test_the_reason_names_the_env_whose_minimum_is_not_there():
    reason = select(queue_of((1, 8)), 8, {0: 2}, {0: "gsm8k_0"}).blocked_reason
    assert reason == (
        "each batch holds at least 2 sequences of env 0 (gsm8k_0), but 0 are queued"
    )


def test_the_reason_names_the_sizes_that_do_not_add_up():
    reason = select(queue_of((0, 3), (0, 3), (0, 3)), 8, {}).blocked_reason
    assert reason == (
        "no combination of the queued groups (3 of size 3) makes exactly 8 sequences: "
        "choose a batch size that the group sizes divide"
    )


def test_the_reason_names_minima_that_do_not_fit_together():
    queue = queue_of((0, 4), (0, 4), (1, 4), (1, 4))
    reason = select(queue, 8, {0: 3, 1: 5}).blocked_reason
    assert reason == (
        "no combination of the queued groups (4 of size 4) makes exactly 8 sequences with "
        "the minimum allocations kept (env 0 at least 3, env 1 at least 5)"
    )
