"""Contract of every store for delivered batches."""

from __future__ import annotations

import pytest

from atroposlib.api.common.records import CommitResult, GroupState, RewindResult, Selection
from atroposlib.api.store.sql import claim as claim_queries
from atroposlib.api.store.sql.ack import Ack, Commit, Discard, Extend, Lookup, Rewind
from atroposlib.errors import ConfigError, CorruptPayload, StaleGeneration
from tests.api.store.store_talk import (
    ENDED_S,
    ack,
    claim,
    ended,
    filled,
    group,
    held,
    kinds,
    put,
    register,
)

# --- fences and acks ----------------------------------------------------------------


def test_a_trainer_of_an_older_generation_is_fenced_from_every_call(store):
    old = filled(store)
    batch = claim(store, old)
    register(store)
    for act in (
        lambda: claim(store, old),
        lambda: store.ask(Lookup(batch.no, old, batch.epoch)),
        lambda: ack(store, batch),
        lambda: store.do(Extend(batch.no, old, batch.epoch, 99.0)),
        lambda: store.do(Commit(batch.no, old)),
        lambda: store.do(Rewind(0, old)),
    ):
        with pytest.raises(StaleGeneration, match="replaced"):
            act()


def test_only_the_latest_delivery_may_be_acked(store):
    generation = filled(store, 1)
    first = claim(store, generation)
    second = claim(store, generation, now=ENDED_S)
    with pytest.raises(StaleGeneration):
        ack(store, first)
    assert ack(store, second)


@pytest.mark.parametrize("no", [0, -1, 7, 2**63, 2**70])
def test_an_ack_of_an_unknown_batch_is_fenced(store, no):
    generation = register(store)
    with pytest.raises(StaleGeneration):
        store.do(Ack(no, generation, 1, rank=None, commit=True))
    with pytest.raises(StaleGeneration):
        store.ask(Lookup(no, generation, 1))
    store.do(Discard(no, [1]))
    if no != 0:
        with pytest.raises(StaleGeneration, match="never formed"):
            store.do(Commit(no, generation))
        with pytest.raises(StaleGeneration, match="never formed"):
            store.do(Rewind(no, generation))


def test_a_repeated_ack_counts_once_and_keeps_the_payload(store):
    generation = filled(store, 1)
    batch = claim(store, generation)
    assert ack(store, batch) is True
    assert ack(store, batch) is False
    stats = store.stats()
    assert (stats.batches_acked, stats.batches_open, stats.group_counts) == (1, 0, ())
    assert ended(store) == {"acked": (1, 8)}
    assert store.read(batch.gids)[0] == b"0"
    assert claim(store, generation, now=1e9) == "0 of 8"


def test_an_ack_that_commits_frees_the_payload_at_once(store):
    batch = claim(store, filled(store, 1))
    assert ack(store, batch, commit=True)
    assert not ack(store, batch, commit=True)
    assert ended(store) == {"committed": (1, 8)}
    assert store.stats().retained_bytes == 0 and store.stats().batches_acked == 1
    with pytest.raises(CorruptPayload):
        store.read(batch.gids)


def test_a_batch_of_several_ranks_is_acked_when_the_last_rank_acks(store):
    batch = claim(store, filled(store, 1), world_size=3)
    assert [ack(store, batch, rank=rank) for rank in (2, 0, 2, 0)] == [False] * 4
    assert store.stats().batches_acked == 0
    assert ack(store, batch, rank=1) is True
    assert ack(store, batch, rank=1) is False
    assert store.stats().batches_acked == 1


@pytest.mark.parametrize("rank", [-1, 3, 2**70])
def test_a_rank_outside_the_world_size_cannot_ack(store, rank):
    batch = claim(store, filled(store, 1), world_size=3)
    with pytest.raises(ConfigError, match="0 .. 2"):
        ack(store, batch, rank=rank)


def test_one_ack_without_a_rank_counts_for_all_ranks(store):
    batch = claim(store, filled(store, 1), world_size=3)
    ack(store, batch, rank=0)
    assert ack(store, batch) is True


def test_ranks_must_ack_again_after_a_redelivery(store):
    generation = filled(store, 1)
    ack(store, claim(store, generation, world_size=2), rank=0)
    again = claim(store, generation, now=ENDED_S, world_size=2)
    assert not ack(store, again, rank=1)
    assert ack(store, again, rank=0)


# --- commit and rewind --------------------------------------------------------------


def test_a_commit_frees_all_batches_up_to_it(store):
    generation = filled(store, 4)
    for batch in [claim(store, generation, claim_id=f"{i}") for i in range(4)][:2]:
        ack(store, batch)
    assert store.do(Commit(0, generation)).committed == 0
    assert store.do(Commit(3, generation)).committed == 3
    assert store.do(Commit(3, generation)).committed == 0
    stats = store.stats()
    assert (stats.batches_acked, stats.batches_open, stats.retained_bytes) == (3, 1, 1)
    assert ended(store) == {"committed": (3, 24)} and held(store, GroupState.LEASED) == 1


def test_a_commit_leaves_open_what_was_claimed_without_a_name_and_never_acked(store):
    generation = filled(store, 4)
    lost, named, trained = (
        claim(store, generation),  # its reply never arrived
        claim(store, generation, claim_id="named"),
        claim(store, generation),
    )
    ack(store, trained)
    assert store.do(Commit(3, generation)) == CommitResult(2, left_open=(lost.no,))
    assert store.stats().batches_open == 1 and named.no == 2
    again = claim(store, generation, now=ENDED_S)
    assert (again.no, again.members) == (lost.no, lost.members)
    ack(store, again)
    assert store.do(Commit(3, generation)) == CommitResult(1)


def test_a_rewind_replays_the_batches_after_the_checkpoint_first_and_in_order(store):
    generation = filled(store, 5)
    batches = [claim(store, generation) for _ in range(4)]
    for batch in reversed(batches):
        ack(store, batch)
    store.do(Commit(1, generation))
    restarted = register(store)
    rewound = store.do(Rewind(2, restarted))
    assert (rewound.replayed, rewound.gone) == (2, 0)
    assert store.stats().batches_acked == 2 and store.stats().batches_open == 2
    again = [claim(store, restarted) for _ in range(3)]
    assert [(one.no, one.epoch) for one in again] == [(3, 2), (4, 2), (5, 1)]
    assert again[0].members == batches[2].members
    assert store.read(again[0].gids) == [b"2"]


def test_a_rewind_fences_earlier_deliveries_of_the_replayed_batches(store):
    generation = filled(store, 1)
    batch = claim(store, generation)
    ack(store, batch)
    store.do(Rewind(0, generation))
    with pytest.raises(StaleGeneration):
        ack(store, batch)
    assert store.stats().delivered == 0
    assert claim(store, generation).no == 1
    assert store.stats().delivered == 1


def test_a_late_copy_of_a_rewind_delivers_no_trained_batch_again(store):
    generation = filled(store, 3)
    ack(store, claim(store, generation))
    assert store.do(Rewind(0, generation, "first")) == RewindResult(1, 0)
    assert store.do(Rewind(0, generation, "first")) == RewindResult(1, 0, repeated=True)
    ack(store, claim(store, generation))
    assert store.do(Rewind(0, generation, "first")) == RewindResult(0, 0, repeated=True)
    assert store.stats().batches_acked == 1
    assert store.do(Rewind(0, generation, "second")) == RewindResult(1, 0)
    assert store.do(Rewind(0, generation, "first")).repeated
    assert not store.do(Rewind(0, register(store), "first")).repeated


def test_a_rewind_redelivers_prefetched_batches_in_order(store):
    generation = filled(store, 3)
    trained, ahead = claim(store, generation), claim(store, generation)
    ack(store, trained)
    assert store.do(Rewind(0, generation)).replayed == 1
    with pytest.raises(StaleGeneration):
        ack(store, ahead)
    assert [claim(store, generation).no for _ in range(3)] == [1, 2, 3]
    assert store.stats().delivered == 3


def test_a_rewind_to_the_beginning_reports_the_freed_batches(store):
    generation = filled(store, 3)
    batches = [claim(store, generation) for _ in range(3)]
    for batch in batches:
        ack(store, batch)
    store.do(Commit(2, generation))
    rewound = store.do(Rewind(0, generation))
    assert (rewound.replayed, rewound.gone) == (1, 2)


def test_a_rewind_counts_open_batches_up_to_the_checkpoint_as_acked(store):
    generation = filled(store, 2)
    first = claim(store, generation)
    claim(store, generation)
    rewound = store.do(Rewind(1, generation))
    assert (rewound.replayed, rewound.gone) == (0, 0)
    assert not ack(store, first)
    assert ended(store) == {"acked": (1, 8)} and store.stats().batches_open == 1


def test_dead_batches_are_neither_committed_nor_replayed(store):
    generation = filled(store, 2)
    ack(store, claim(store, generation), commit=True)
    for _ in range(2):
        claim(store, generation, claim_id="x", max_deliveries=1)
    assert claim(store, generation, claim_id="x", max_deliveries=1) == "0 of 8"
    assert store.do(Commit(2, generation)).committed == 0
    assert store.do(Rewind(1, generation)).replayed == 0
    assert ended(store) == {"committed": (1, 8), "dead": (1, 8)}


# --- damage -------------------------------------------------------------------------


def test_damaged_groups_are_discarded_and_the_others_return_in_another_batch(store):
    put(store, group("a"), group("b"), group("c"))
    generation = register(store)
    batch = claim(store, generation)
    store.do(Discard(batch.no, [1, 3, 77]))
    assert ended(store) == {"dead": (1, 4)}
    assert kinds(store) == {("pending", None, 4): (2, 2)}
    assert store.stats().delivered == 0
    with pytest.raises(StaleGeneration):
        ack(store, batch)
    assert claim(store, generation).gids == (2, 3)


def test_a_batch_that_is_not_open_is_not_discarded(store):
    generation = filled(store, 1)
    batch = claim(store, generation)
    store.do(Discard(batch.no, []))
    store.do(Discard(batch.no + 1, [1]))
    assert ack(store, batch)
    before = store.stats()
    store.do(Discard(batch.no, [1]))
    assert store.stats() == before


# --- counts and the ledger ----------------------------------------------------------


def test_deliveries_are_counted_per_trainer_and_redeliveries_are_not_counted(store):
    generation = filled(store)
    claim(store, generation)
    claim(store, generation)
    claim(store, generation, now=ENDED_S)
    assert store.stats().delivered == 2
    restarted = register(store)
    assert store.stats().delivered == 0
    claim(store, restarted)
    assert store.stats().delivered == 1


def test_the_ledger_removes_old_finished_groups(store, monkeypatch):
    assert claim_queries.LEDGER_GROUPS == 20_000
    monkeypatch.setattr(claim_queries, "LEDGER_GROUPS", 3)
    generation = filled(store, 6)
    for _ in range(6):
        ack(store, claim(store, generation), commit=True)
    again = put(store, *(group(f"{i}", 8, key=f"k{i}") for i in range(6)))
    assert [one.duplicate for one in again] == [False] * 3 + [True] * 3
    assert ended(store) == {"committed": (6, 48)}


def test_groups_of_open_batches_are_never_removed_from_the_ledger(store, monkeypatch):
    monkeypatch.setattr(claim_queries, "LEDGER_GROUPS", 1)
    put(store, group("wait", 4, key="w"))
    put(store, *(group(f"{i}", 8) for i in range(5)))
    generation = register(store)
    while not isinstance(batch := claim(store, generation, choose=_largest), str):
        ack(store, batch, commit=True)
    assert put(store, group("wait", 4, key="w"))[0].duplicate
    assert store.read([1])[0] == b"wait"


def _largest(queue, fair_share):
    gids = tuple(one.gid for one in queue if one.n_seq == 8)[:1]
    return Selection(gids=gids, blocked_reason=None if gids else "none")


def test_sequence_counts_stay_correct_when_equally_many_groups_arrive_and_leave(store):
    generation = register(store)
    put(store, group("a", 8), group("b", 4))
    claim(store, generation)
    ack(store, claim(store, generation, size=4))
    store.do(Rewind(1, generation))  # the group of 8 counts as trained, that of 4 comes again
    assert ended(store) == {"acked": (1, 8)}
