"""Blocked reasons: the message for each cause, and agreement with the batch selection."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from atroposlib.api.common.records import GroupCount, GroupState, StoreStats
from atroposlib.api.decisions.blocked import Situation, blocked_reason, starved, uncommitted
from tests.api.decisions.summaries import SOME, groups, needs, pick, queue_of


def tallies_of(queue):
    counts = Counter((group.env, group.n_seq) for group in queue)
    return tuple(
        GroupCount(GroupState.PENDING, *kind, groups) for kind, groups in counts.items()
    )


def _stats(queue, **more):
    return StoreStats(tallies_of(queue), batches_acked=0, delivered=0, **more)


@given(queue=groups, target=st.integers(1, 24), needs=needs)
@SOME
def test_the_reason_computed_from_tallies_equals_that_of_a_claim(queue, target, needs):
    selection = pick(queue, target, needs)
    assert blocked_reason(_stats(queue), Situation(target, needs, {})) == (
        selection.blocked_reason
    )


@given(queue=groups, target=st.integers(1, 24), needs=needs)
@SOME
def test_a_full_store_has_a_reason_exactly_if_its_claim_gets_no_batch(queue, target, needs):
    full, now = _stats(queue, retained_bytes=90), Situation(target, needs, {}, max_bytes=100)
    got = pick(queue, target, needs, full=True)
    assert (blocked_reason(full, now) is None) == bool(got.gids)


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
            "waiting for it (POST /disconnect-env of env 0, or 60 s of silence (300 s of old "
            "clients), ends its minimum)",
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
def test_a_blocked_reason_suggests_a_remedy(queue, batch_size, needs, reason):
    selection = pick(queue_of(*queue), batch_size, needs, names={0: "gsm8k_0"})
    assert selection.blocked_reason == reason


def test_a_blocked_reason_names_minima_that_the_queued_groups_cannot_meet():
    queue = queue_of((0, 4), (1, 8), (1, 8), (2, 4), (2, 4))
    reason = pick(queue, 16, {0: 1, 1: 1, 2: 8}).blocked_reason
    assert reason == (
        "the minimum allocations can never be met by a batch of 16 sequences (env 0 at least "
        "1 in groups of 4, env 1 at least 1 in groups of 8, env 2 at least 8 in groups of "
        "4): lower them, or choose group sizes that fit"
    )


def test_a_full_store_names_its_holders_the_largest_first():
    held = GroupCount(GroupState.BUFFERED, 0, 3, groups=2, n_bytes=30)
    stats = StoreStats(
        (held,),
        batches_acked=9,
        delivered=9,
        retained_bytes=96,
        batches_uncommitted=4,
        dead_bytes=16,
    )
    reason = blocked_reason(stats, Situation(8, {}, {}, max_bytes=100))
    assert reason == (
        "the store is full, 96 of 100 bytes (50 by 4 acked batches until POST "
        "/batches/N/commit, 30 by groups in buffers until whole or their env leaves, 16 by "
        "dead batches (atropos api dead)); the queue is empty: waiting for scored groups"
    )


@pytest.mark.parametrize(
    ("kept", "uncommitted_batches", "warned"), [(26, 3, True), (26, 2, False), (25, 3, False)]
)
def test_a_trainer_that_never_commits_what_it_acked_is_warned_of(
    kept, uncommitted_batches, warned
):
    stats = StoreStats((), 3, 3, retained_bytes=kept, batches_uncommitted=uncommitted_batches)
    assert bool(uncommitted(stats, 100)) is warned


def test_sizes_that_no_batch_holds_starve():
    queue = queue_of((0, 8), (1, 6), (1, 6), (2, 40))
    assert [text[:16] for text in starved(_stats(queue), 16, {})] == [
        "groups of 6 of e",
        "groups of 40 of ",
    ]
    assert starved(_stats(queue_of((0, 8), (1, 6), (1, 2))), 16, {}) == []
