"""What every store promises, asked of every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.api.batching import select
from atroposlib.api.records import GroupState, NewGroup
from atroposlib.api.store import STORES, open_store
from atroposlib.errors import ConfigError, CorruptPayload, Fenced, KeyConflict


@pytest.fixture(params=sorted(STORES))
def store(request, tmp_path):
    store = open_store(request.param, tmp_path)
    yield store
    store.close()


def group(text="{}", n_seq=4, **more):
    return NewGroup(payload=text.encode(), n_seq=n_seq, **more)


def claim(store, generation, size=8, now=0.0, lease_s=10.0):
    return store.claim(generation, size, lambda queue: select(queue, size, {}), now, lease_s)


def held(store, state):
    return sum(tally.groups for tally in store.stats().tallies if tally.state is state)


def test_a_batch_is_the_oldest_groups_and_their_exact_bytes(store):
    store.put([group('{"a": 1}'), group('{"b":2.50}'), group("{}")])
    batch = claim(store, store.register())
    assert (batch.no, batch.epoch) == (1, 1)
    assert store.read(batch.gids) == [b'{"a": 1}', b'{"b":2.50}']


def test_groups_of_a_batch_are_read_in_the_order_asked_for(store):
    store.put([group("a"), group("b")])
    assert store.read([2, 1]) == [b"b", b"a"]


def test_a_known_key_is_absorbed(store):
    [first] = store.put([group("x", key="k")])
    [second] = store.put([group("x", key="k")])
    assert (second.gid, second.duplicate) == (first.gid, True)
    assert held(store, GroupState.PENDING) == 1


def test_a_key_twice_in_one_put_is_kept_once(store):
    first, second = store.put([group("x", key="k"), group("x", key="k")])
    assert second.duplicate and second.gid == first.gid


def test_a_key_is_absorbed_also_after_its_ack(store):
    store.put([group("x", 8, key="k")])
    generation = store.register()
    batch = claim(store, generation)
    assert store.ack(batch.no, generation, batch.epoch)
    [again] = store.put([group("x", 8, key="k")])
    assert again.duplicate and again.state is GroupState.ACKED
    assert isinstance(claim(store, generation), str)


def test_a_key_with_other_content_is_refused_and_nothing_of_the_put_stays(store):
    store.put([group("x", key="k")])
    with pytest.raises(KeyConflict):
        store.put([group("new"), group("y", key="k")])
    assert held(store, GroupState.PENDING) == 1


def test_a_refused_put_leaves_its_neighbours_alone(store):
    store.put([group("x", key="k")])

    def post(i):
        try:
            return store.put([group("y", key="k") if i % 4 == 0 else group(f"{i}")])
        except KeyConflict:
            return None

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(post, range(64)))
    assert sum(outcome is None for outcome in outcomes) == 16
    assert held(store, GroupState.PENDING) == 1 + 48


def test_concurrent_puts_all_stay_and_get_gids_of_their_own(store):
    with ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(lambda i: store.put([group(f"{i}", key=f"{i}")]), range(40)))
    gids = [one.gid for [one] in stored]
    assert len(set(gids)) == 40
    assert store.read(gids) == [f"{i}".encode() for i in range(40)]


def test_a_second_claim_brings_the_same_batch_with_a_higher_epoch(store):
    store.put([group("a"), group("b"), group("c"), group("d")])
    generation = store.register()
    first, second = claim(store, generation), claim(store, generation)
    assert (second.no, second.gids, second.epoch) == (first.no, first.gids, 2)


def test_a_restarted_trainer_gets_the_unacked_batch_first(store):
    store.put([group("a"), group("b"), group("c"), group("d")])
    first = claim(store, store.register())
    again = claim(store, store.register())
    assert (again.no, again.gids, again.epoch) == (first.no, first.gids, 2)


def test_an_unacked_batch_of_another_size_is_dissolved_into_the_queue(store):
    store.put([group("a"), group("b"), group("c")])
    first = claim(store, store.register(), size=8)
    resized = claim(store, store.register(), size=12)
    assert resized.no > first.no
    assert resized.gids == (1, 2, 3)


def test_an_older_trainer_is_fenced(store):
    store.put([group("a", 8)])
    old = store.register()
    batch = claim(store, old)
    store.register()
    for act in (
        lambda: claim(store, old),
        lambda: store.ack(batch.no, old, batch.epoch),
        lambda: store.extend(batch.no, old, batch.epoch, 99.0),
    ):
        with pytest.raises(Fenced):
            act()


def test_only_the_latest_delivery_may_be_acked(store):
    store.put([group("a", 8)])
    generation = store.register()
    first, second = claim(store, generation), claim(store, generation)
    with pytest.raises(Fenced):
        store.ack(first.no, generation, first.epoch)
    assert store.ack(second.no, generation, second.epoch)


@pytest.mark.parametrize("no", [0, -1, 7, 2**70])
def test_a_batch_that_never_was_cannot_be_acked(store, no):
    with pytest.raises(Fenced):
        store.ack(no, store.register(), 1)


def test_an_ack_counts_once_and_frees_the_payload(store):
    store.put([group("a", 8)])
    generation = store.register()
    batch = claim(store, generation)
    assert store.ack(batch.no, generation, batch.epoch) is True
    assert store.ack(batch.no, generation, batch.epoch) is False
    assert store.stats().batches_acked == 1
    with pytest.raises(CorruptPayload):
        store.read(batch.gids)


def test_deliveries_are_counted_per_trainer_and_a_redelivery_is_none(store):
    store.put([group("a", 8), group("b", 8)])
    generation = store.register()
    claim(store, generation)
    claim(store, generation)
    assert store.stats().delivered == 1
    store.register()
    assert store.stats().delivered == 0


def test_a_blocked_claim_says_why(store):
    assert claim(store, store.register()).startswith("the queue is empty")


def test_buffered_groups_wait_until_released_and_keep_their_place(store):
    store.put([group("a", 4, env=3, buffered=True), group("b", 8)])
    assert store.buffered() == [(1, 3, 4)]
    assert claim(store, store.register()).gids == (2,)
    store.release([1])
    assert store.buffered() == []
    assert claim(store, store.register(), size=4).gids == (1,)


def test_documents_are_kept(store):
    assert store.load("run") is None
    store.save("run", b"one")
    store.save("run", b"two")
    assert store.load("run") == b"two"


def test_a_reset_forgets_all_and_fences_everybody(store):
    store.put([group("a", 8, key="k")])
    generation = store.register()
    batch = claim(store, generation)
    store.save("run", b"x")
    store.reset()
    assert store.stats().tallies == () and store.load("run") is None
    with pytest.raises(Fenced):
        store.ack(batch.no, generation, batch.epoch)
    [stored] = store.put([group("other", 8, key="k")])
    assert not stored.duplicate and stored.gid > max(batch.gids)
    assert claim(store, store.register()).no > batch.no


def test_a_store_can_be_closed_twice(store):
    store.close()
    store.close()


def test_an_unknown_store_is_named():
    with pytest.raises(ConfigError, match="'redis'.*memory, sqlite"):
        open_store("redis")
