"""Batches are exact, whole, within minima, in the order of the mix; reasons are readable."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.api.common.records import GroupCount, GroupState, GroupSummary
from atroposlib.api.decisions import fair_share
from atroposlib.api.decisions.batching import StalenessRule, choose, complete_buffer
from atroposlib.api.decisions.blocked import blocked_reason

SOME = settings(max_examples=300, deadline=None)


def queue_of(*rows):
    return [GroupSummary(gid, *row) for gid, row in enumerate(rows, start=1)]


def pick(queue, batch_size, needs=None, **more):
    return choose(queue, batch_size=batch_size, needs=needs, **more)


def tallies_of(queue):
    counts = Counter((group.env, group.n_seq) for group in queue)
    return [GroupCount(GroupState.PENDING, *kind, groups) for kind, groups in counts.items()]


groups = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1, 2]),
        st.sampled_from([1, 2, 3, 4, 6, 12]),
        st.integers(0, 9),
    ),
    max_size=9,
).map(lambda rows: queue_of(*rows))
needs = st.dictionaries(st.sampled_from([0, 1, 2]), st.integers(0, 8), max_size=3)
weights = st.dictionaries(st.sampled_from([None, 0, 1, 2]), st.floats(0, 10), max_size=4)


# --- what is chosen -----------------------------------------------------------------


def test_equal_groups_leave_in_the_order_they_came():
    assert pick(queue_of(*[(0, 4)] * 5), 8).gids == (1, 2)


def test_a_size_that_does_not_divide_the_largest_is_served():
    # 8 and 12 of one environment: the original waited for ever.
    assert pick(queue_of((0, 8), (0, 12), (0, 12), (0, 8)), 20).gids == (1, 2)


def test_the_oldest_group_waits_if_no_exact_batch_contains_it():
    assert pick(queue_of((0, 3), (0, 4), (0, 4)), 8).gids == (2, 3)


def test_groups_without_env_are_served_beside_a_minimum():
    assert pick(queue_of((None, 4), (None, 4), (0, 4)), 8, {0: 4}).gids == (1, 3)


def test_the_heavier_env_comes_first_and_the_batch_is_still_listed_oldest_first():
    queue = queue_of((0, 4), (0, 4), (1, 4), (1, 4))
    assert pick(queue, 8, weights={0: 1.0, 1: 4.0}).gids == (3, 4)
    assert pick(queue, 12, weights={0: 1.0, 1: 4.0}).gids == (1, 3, 4)


def test_a_minimum_goes_before_the_mix():
    queue = queue_of((0, 4), (0, 4), (1, 4), (1, 4))
    assert pick(queue, 8, {0: 1}, weights={0: 0.01, 1: 100.0}).gids == (1, 3)


def test_what_a_batch_took_decides_who_comes_next():
    queue = queue_of((0, 4, 30), (0, 4, 30), (1, 4, 10), (1, 4, 10), (1, 4, 10), (1, 4, 10))
    first = pick(queue, 8)
    assert first.gids == (3, 4)  # 10 and 20 tokens: both paid for before the 30
    left = [group for group in queue if group.gid not in first.gids]
    second = choose(left, first.fair_share, batch_size=8)
    assert second.gids == (1, 5)


def test_stale_groups_are_dropped_also_when_nothing_is_left_to_choose():
    queue = [GroupSummary(1, 0, 4, version=1), GroupSummary(2, 0, 4, version=5)]
    selection = pick(queue, 8, policy=StalenessRule("drop", 2, 5))
    assert (selection.gids, selection.dropped) == ((), (1,))
    assert selection.blocked_reason == "4 of 8 sequences queued: waiting for scored groups"


def test_a_batch_says_which_tokens_to_mask():
    queue = [GroupSummary(1, 0, 4, version=1), GroupSummary(2, 0, 4, version=5)]
    selection = pick(queue, 8, policy=StalenessRule("mask", 2, 5))
    assert (selection.gids, selection.dropped, selection.min_version) == ((1, 2), (), 3)


@given(queue=groups, target=st.integers(1, 24), needs=needs, weights=weights)
@SOME
def test_every_batch_is_exact_and_keeps_every_minimum(queue, target, needs, weights):
    selection = pick(queue, target, needs, weights=weights)
    chosen = [group for group in queue if group.gid in selection.gids]
    if selection.gids:
        assert list(selection.gids) == sorted(set(selection.gids))
        assert sum(group.n_seq for group in chosen) == target
        for env, need in needs.items():
            assert sum(group.n_seq for group in chosen if group.env == env) >= need
        trained = sum(entry.trained for entry in fair_share.decode(selection.fair_share).envs)
        assert trained == sum(group.n_tokens for group in chosen)
    else:
        assert selection.blocked_reason and selection.fair_share is None


@given(queue=groups, target=st.integers(1, 24), needs=needs)
@SOME
def test_tallies_alone_say_what_a_claim_would_say(queue, target, needs):
    selection = pick(queue, target, needs)
    assert blocked_reason(tallies_of(queue), target, needs) == selection.blocked_reason


def test_a_buffer_gives_its_earliest_groups_that_add_up():
    assert complete_buffer([(7, 4), (8, 3), (9, 2), (11, 2)], 5) == [8, 9]
    assert complete_buffer([(7, 8)], 5) == []
    assert complete_buffer([], 5) == []


def test_twenty_thousand_groups_of_awkward_sizes_are_no_problem():
    queue = queue_of(*[(i % 7, (6, 10, 15)[i % 3], i % 100) for i in range(20_000)])
    chosen = set(pick(queue, 1000, {0: 100, 3: 200}).gids)
    rows = [group for group in queue if group.gid in chosen]
    assert sum(group.n_seq for group in rows) == 1000
    assert sum(group.n_seq for group in rows if group.env == 3) >= 200


# --- what a person reads ------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "batch_size", "needs", "reason"),
    [
        ([], 8, {}, "the queue is empty: waiting for scored groups"),
        ([(0, 4)], 8, {}, "4 of 8 sequences queued: waiting for scored groups"),
        (
            [(1, 8)],
            8,
            {0: 2},
            "each batch holds at least 2 sequences of gsm8k_0 (env 0), but 0 are queued: "
            "waiting for it",
        ),
        (
            [(0, 3), (0, 3), (0, 3)],
            8,
            {},
            "no combination of the queued groups (3 of size 3) makes exactly 8 sequences: "
            "choose a batch size that the group sizes divide",
        ),
        (
            [(0, 3), (0, 3), (1, 5)],
            10,
            {},
            "no combination of the queued groups (2 of size 3, 1 of size 5) makes exactly 10 "
            "sequences: waiting for groups that fill the gap",
        ),
        (
            [(0, 4), (1, 8), (1, 8)],
            16,
            {0: 1},
            "no combination of the queued groups (1 of size 4, 2 of size 8) makes exactly 16 "
            "sequences with the minimum allocations kept (gsm8k_0 (env 0) at least 1): "
            "waiting for groups that fill the gap",
        ),
        (
            [(0, 4), (1, 4), (2, 4)],
            16,
            {0: 5, 1: 5, 2: 5},
            "the minimum allocations can never be met by a batch of 16 sequences "
            "(gsm8k_0 (env 0) at least 5 in groups of 4, env 1 at least 5 in groups of 4, "
            "env 2 at least 5 in groups of 4): lower them, or choose group sizes that fit",
        ),
        (
            [(0, 16), (None, 32)],
            8,
            {},
            "every queued group is larger than a batch of 8 sequences (gsm8k_0 (env 0) 16, "
            "groups without env 32): raise the batch size, or lower the group size of the "
            "environments",
        ),
        (
            [(0, 16), (0, 4)],
            8,
            {},
            "4 of 8 sequences queued: waiting for scored groups (left out: 1 larger than a "
            "whole batch)",
        ),
    ],
)
def test_the_reason_says_what_to_do(queue, batch_size, needs, reason):
    selection = pick(queue_of(*queue), batch_size, needs, names={0: "gsm8k_0"})
    assert selection.blocked_reason == reason


def test_the_reason_names_minima_that_the_queued_groups_cannot_keep():
    queue = queue_of((0, 4), (1, 8), (1, 8), (2, 4), (2, 4))
    reason = pick(queue, 16, {0: 1, 1: 1, 2: 8}).blocked_reason
    assert reason == (
        "the minimum allocations can never be met by a batch of 16 sequences (env 0 at least "
        "1 in groups of 4, env 1 at least 1 in groups of 8, env 2 at least 8 in groups of "
        "4): lower them, or choose group sizes that fit"
    )
