"""Contract of every store for claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atroposlib.api.common.records import BatchMember, Claim, GroupState, Selection
from atroposlib.api.store.sql.ack import (
    Commit,
    Discard,
    DropDead,
    Extend,
    Lookup,
    Revive,
    Rewind,
    dead_batches,
)
from atroposlib.api.store.sql.claim import ClaimBatch
from atroposlib.api.store.sql.run import reset_run
from atroposlib.errors import CorruptPayload, StaleGeneration
from tests.api.store.store_talk import (
    ENDED_S,
    LEASE_S,
    ack,
    claim,
    ended,
    filled,
    group,
    kinds,
    oldest,
    put,
    register,
)


def test_a_batch_has_a_number_and_its_member_groups(store):
    put(
        store,
        group("four", 4, env=2, n_tokens=70, version=5, arrived_version=6),
        group("0123456789", 4),
    )
    generation = register(store)
    batch = claim(store, generation, world_size=2)
    assert (batch.no, batch.epoch, batch.generation, batch.world_size) == (1, 1, generation, 2)
    assert batch.members == (
        BatchMember(1, 2, 4, 70, 5, 6, 4),
        BatchMember(2, None, 4, 0, n_bytes=10),
    )
    assert (batch.n_seq, batch.dropped, batch.min_version) == (8, 0, None)
    assert store.ask(Lookup(1, generation, 1)) == batch


def test_a_blocked_claim_returns_a_reason_and_changes_no_state(store):
    put(store, group("a", 4))
    generation = register(store)
    before = store.stats()
    assert claim(store, generation) == "4 of 8"
    assert store.stats() == before


def test_the_next_batch_is_formed_while_another_is_leased(store):
    generation = filled(store)
    first, second = claim(store, generation), claim(store, generation)
    assert (first.no, first.gids, second.no, second.gids) == (1, (1,), 2, (2,))
    assert store.stats().batches_open == 2


def test_a_repeated_claim_returns_the_same_batch_after_a_lost_reply(store):
    generation = filled(store)
    first = claim(store, generation, claim_id="one")
    again = claim(store, generation, claim_id="one", now=1.0)
    assert (again.no, again.members, again.epoch) == (first.no, first.members, 2)
    assert claim(store, generation, claim_id="two").no == 2
    assert ack(store, first)  # whichever reply the trainer holds


def test_a_new_claim_of_a_batch_fences_the_earlier_delivery(store):
    generation = filled(store)
    first = claim(store, generation, claim_id="one")
    claim(store, generation, claim_id="two", now=ENDED_S)
    with pytest.raises(StaleGeneration):
        ack(store, first)


def test_a_repeated_claim_takes_precedence_over_older_batches(store):
    generation = filled(store)
    claim(store, generation, claim_id="one")
    claim(store, generation, claim_id="two", now=5.0)
    assert claim(store, generation, claim_id="two", now=ENDED_S).no == 2
    assert claim(store, generation, claim_id="three", now=ENDED_S).no == 1


def test_an_unacked_batch_is_redelivered_after_its_lease_expires(store):
    generation = filled(store)
    first = claim(store, generation, choose=_with(oldest(8), min_version=3))
    assert claim(store, generation, now=ENDED_S - 0.1).no == 2
    again = claim(store, generation, now=ENDED_S)
    assert (again.no, again.epoch, again.min_version) == (first.no, 2, 3)
    assert claim(store, generation, now=2 * ENDED_S - 0.1).no == 2


def _with(choose, **more):
    def with_more(queue, fair_share):
        return replace(choose(queue, fair_share), **more)

    return with_more


def test_an_extended_lease_expires_later(store):
    generation = filled(store, 1)
    batch = claim(store, generation)
    store.do(Extend(batch.no, generation, batch.epoch, 50.0))
    assert claim(store, generation, now=49.0) == "0 of 8"
    assert claim(store, generation, now=50.0).no == batch.no


def test_a_restarted_trainer_gets_the_open_batches_of_its_predecessor_in_order(store):
    generation = filled(store, 3)
    claim(store, generation)
    claim(store, generation)
    restarted = register(store)
    batches = [claim(store, restarted) for _ in range(3)]
    assert [(one.no, one.epoch) for one in batches] == [(1, 2), (2, 2), (3, 1)]


def test_a_batch_of_another_size_is_returned_to_the_queue(store):
    put(store, group("a"), group("b"), group("c"), group("d", 12))
    first = claim(store, register(store), size=8)
    resized = claim(store, register(store), size=12)
    assert (resized.no, resized.gids, resized.epoch) == (first.no + 1, (1, 2, 3), 1)
    stats = store.stats()
    assert (stats.batches_open, stats.delivered) == (1, 1)
    with pytest.raises(StaleGeneration):
        store.ask(Lookup(first.no, resized.generation, 2))


def test_a_batch_beyond_the_delivery_limit_is_dead_with_its_groups(store):
    generation = filled(store, 3)
    ack(store, claim(store, generation))  # this trainer works
    for epoch in (1, 2, 3, 4):
        batch = claim(store, generation, claim_id="x", max_deliveries=3)
        assert (batch.no, batch.epoch) == (2, epoch)
    last = batch
    assert claim(store, generation, claim_id="x", max_deliveries=3).no == 3
    stats = store.stats()
    assert (stats.batches_dead, stats.batches_open, stats.dead_bytes) == (1, 1, 1)
    assert ended(store)["dead"] == (1, 8)
    assert stats.retained_bytes == 3
    assert store.read([2])[0] == b"1"
    with pytest.raises(StaleGeneration):
        ack(store, last)


def test_batches_beyond_the_limit_come_last_and_in_turn_while_no_other_was_acked(store):
    filled(store, 2)
    batches = [claim(store, register(store), max_deliveries=2) for _ in range(8)]
    assert [one.gids for one in batches] == [(1,)] * 2 + [(2,)] * 2 + [(1,), (2,)] * 2
    assert store.stats().batches_dead == 0


def test_a_batch_that_comes_after_a_later_one_is_replayed_with_it(store):
    filled(store, 3)
    for _ in range(3):
        generation = register(store)
        batch = claim(store, generation, max_deliveries=2)
    assert batch.gids == (2,)
    ack(store, batch)
    late = claim(store, generation, max_deliveries=2)
    assert (late.no, late.gids) == (3, (1,))
    ack(store, late)
    assert store.do(Commit(batch.no, generation)).committed == 1
    assert store.do(Rewind(batch.no, generation)).replayed == 1
    assert claim(store, generation).gids == (1,)


def test_a_dead_batch_is_freed_or_revived_with_the_next_number(store):
    generation = filled(store, 4)
    ack(store, claim(store, generation))
    for claim_id in "ab":
        for _ in range(3):
            claim(store, generation, claim_id=claim_id, max_deliveries=1)
    assert [(one.no, one.n_bytes) for one in store.ask(dead_batches)] == [(2, 1), (4, 1)]
    assert store.do(Revive(2)) and store.do(DropDead(4))
    assert (
        not store.do(Revive(4)) and not store.do(DropDead(2)) and store.ask(dead_batches) == []
    )
    revived = claim(store, generation)
    assert (revived.no, revived.gids) == (5, (2,))
    assert ended(store) == {"acked": (1, 8), "dropped": (1, 8)}
    store.do(Discard(5, [2]))
    assert [one.no for one in store.ask(dead_batches)] == [0] and store.do(DropDead(0))
    assert (store.stats().dead_bytes, store.stats().batches_dead) == (0, 0)


def test_damaged_groups_come_first_among_the_dead_of_every_store(store):
    generation = filled(store, 4)
    ack(store, claim(store, generation))
    store.do(Discard(claim(store, generation).no, [2]))
    for _ in range(3):
        claim(store, generation, claim_id="a", max_deliveries=1)
    assert [one.no for one in store.ask(dead_batches)] == [0, 3]


def test_a_late_repeat_of_an_acked_claim_is_refused_until_a_rewind(store):
    generation = filled(store, 2)
    ack(store, claim(store, generation, claim_id="x"))
    with pytest.raises(StaleGeneration, match="'x' brought batch 1, which is acked"):
        claim(store, generation, claim_id="x")
    store.do(Rewind(0, generation))
    assert claim(store, generation, claim_id="x").no == 1


def test_deliveries_before_an_ack_do_not_count_against_a_replay(store):
    generation = filled(store, 1)
    claim(store, generation, claim_id="x")
    ack(store, claim(store, generation, claim_id="x"))
    store.do(Rewind(0, generation))
    batch = claim(store, generation, max_deliveries=2)
    assert (batch.no, batch.epoch) == (1, 3)


def test_the_chooser_gets_the_oldest_groups_of_each_kind_that_could_fit(store):
    groups = [group(f"{i}", 2 + 2 * (i % 2), env=i % 3) for i in range(60)]
    put(store, *groups, group("large", 9, env=0), group("none", 8))
    seen = []

    def look(queue, fair_share):
        seen.extend(queue)
        return Selection(blocked_reason="looking")

    claim(store, register(store), size=8, choose=look)
    expected = [
        i + 1
        for i in range(60)
        if sum(j % 6 == i % 6 for j in range(i)) < 8 // (2 + 2 * (i % 2))
    ]
    assert [one.gid for one in seen] == [*expected, 62]
    assert (seen[1].env, seen[1].n_seq, seen[-1].env) == (1, 4, None)


def test_dropped_groups_are_freed_and_the_chooser_is_called_again(store):
    put(store, *(group(f"{i}", 4, version=i, key=f"{i}") for i in range(6)))
    generation = register(store)

    def fresh(queue, fair_share):
        stale = tuple(one.gid for one in queue if one.version < 3)
        return Selection(dropped=stale) if stale else oldest(8)(queue, fair_share)

    batch = claim(store, generation, choose=fresh)
    assert (batch.gids, batch.dropped) == ((4, 5), 3)
    assert ended(store) == {"dropped": (3, 12)}
    assert store.stats().retained_bytes == 3
    with pytest.raises(CorruptPayload):
        store.read([1])
    [again] = put(store, group("0", 4, key="0"))
    assert again.duplicate and again.state is GroupState.DROPPED
    assert claim(store, generation, now=ENDED_S).dropped == 3


def test_dropped_groups_stay_dropped_when_no_batch_is_formed(store):
    put(store, group("a", 4), group("b", 4))
    drop_first = Selection(dropped=(1,), blocked_reason="one left")

    def choose(queue, fair_share):
        return drop_first if len(queue) == 2 else Selection(blocked_reason="one left")

    assert claim(store, register(store), choose=choose) == "one left"
    assert kinds(store) == {("pending", None, 4): (1, 1)}


def test_the_fair_share_state_of_a_batch_is_passed_to_the_next_selection(store):
    generation = filled(store, 3)
    seen = []

    def mixed(queue, fair_share):
        seen.append(fair_share)
        return Selection(gids=(queue[0].gid,), fair_share=b"%d" % len(seen))

    claim(store, generation, choose=mixed)
    claim(
        store,
        generation,
        choose=lambda queue, fair_share: Selection(blocked_reason="", fair_share=b"no"),
    )
    claim(store, generation, choose=mixed)
    assert seen == [None, b"1"] and store.stats().fair_share == b"2"
    store.do(reset_run)
    assert store.stats().fair_share is None


def test_a_claim_on_a_long_queue_passes_a_bounded_list_to_the_chooser(store):
    put(store, *(group(f"{i}", 1, env=i % 2) for i in range(500)))
    shown = []

    def count(queue, fair_share):
        shown.append(len(queue))
        return oldest(4)(queue, fair_share)

    asked = Claim(register(store), 4, 0.0, LEASE_S)
    assert store.do(ClaimBatch(asked, count)).gids == (1, 2, 3, 4)
    assert shown == [8]
