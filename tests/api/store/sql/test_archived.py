"""Archive of a store: retired payloads stay readable within a bound, and never return."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, strategies as st

from atroposlib.api.common.records import Selection
from atroposlib.api.store.postgres import PostgresStore
from atroposlib.api.store.sql.ack import Commit, Rewind
from atroposlib.api.store.sql.ledger import Arrivals
from atroposlib.api.store.sql.run import FreeAbsent, reset_run
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.errors import ConfigError, CorruptPayload
from tests.api.store.store_talk import ack, claim, first_of, group, put, register
from tests.examples import examples

KEPT = 10**6


def retired(store, gid):
    """The payload, from the queue or the archive; None if it is freed."""
    try:
        return store.read([gid], retired=True)[0]
    except CorruptPayload:
        return None


@pytest.fixture(params=["sqlite", "postgres"])
def places(request, tmp_path_factory):
    """``places()(bound)`` opens the store of a new place, again and again."""

    def new_place():
        if request.param == "sqlite":
            small = {"segment_bytes": 100, "synchronous": "OFF"}
            folder = tmp_path_factory.mktemp("archived")
            return lambda bound: SqliteStore(folder, archive_bytes=bound, **small)
        url = request.getfixturevalue("postgres").fresh_url()
        return lambda bound: PostgresStore(url, archive_bytes=bound)

    return new_place


@pytest.fixture
def opened(places):
    return places()


def test_a_committed_group_stays_readable_and_leaves_the_queue(opened):
    store = opened(KEPT)
    put(store, group("first", 8))
    generation = register(store)
    ack(store, claim(store, generation), commit=True)
    assert retired(store, 1) == b"first"
    with pytest.raises(CorruptPayload):
        store.read([1])
    stats = store.stats()
    assert (stats.retained_bytes, stats.groups_held) == (0, 0)
    assert store.do(Rewind(0, generation)).replayed == 0
    assert claim(store, generation) == "0 of 8"
    store.close()
    store = opened(KEPT)
    assert retired(store, 1) == b"first"
    store.close()


def test_groups_dropped_as_stale_and_those_of_a_reset_are_archived(opened):
    store = opened(KEPT)
    put(store, group("stale"), group("left"))
    generation = register(store)
    claim(store, generation, choose=lambda q, f: Selection(dropped=(1,), blocked_reason="no"))
    store.do(reset_run)
    assert [retired(store, gid) for gid in (1, 2)] == [b"stale", b"left"]
    assert store.kept_gids(0, 9) == [1, 2]
    store.close()


def test_without_an_archive_payloads_are_freed_and_those_of_before_too(opened):
    store = opened(KEPT)
    put(store, group("first" * 30, 8))
    ack(store, claim(store, register(store)), commit=True)
    store.close()
    store = opened(0)
    put(store, group("second" * 30, 8))
    put(store, group("third" * 30, 8))
    assert retired(store, 1) is None
    store.close()


def test_pinned_groups_outlive_the_bound_and_unpinned_ones_do_not(opened):
    store = opened(250)
    generation = register(store)
    for mark in "abcdef":
        put(store, group(mark * 100, 8))
        ack(store, claim(store, generation), commit=True)
        if mark == "a":
            store.pin([1])
    assert (retired(store, 1), retired(store, 2)) == (b"a" * 100, None)
    assert store.count_pinned([1, 2]) == 1
    store.pin([1], kept=False)
    put(store, group("g" * 100, 8))
    ack(store, claim(store, generation), commit=True)
    assert (retired(store, 1), store.count_pinned([1])) == (None, 0)
    store.close()
    store = opened(0)
    with pytest.raises(ConfigError, match="no archive"):
        store.pin([1])
    store.close()


OPERATIONS = st.lists(
    st.sampled_from(
        ["put", "put", "large", "train", "train", "ack", "commit", "drop", "reopen"]
    ),
    max_size=40,
)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS, bound=st.sampled_from([0, 150, 400, KEPT]))
def test_queue_and_archive_hold_each_group_once_and_lose_the_oldest_first(
    places, operations, bound
):
    opened = partial(places(), bound)
    store = opened()
    generation = register(store)
    put_bytes, acked = {}, []
    for operation in operations:
        if operation in ("put", "large"):
            body = bytes([65 + len(put_bytes) % 26]) * (30 if operation == "put" else 90)
            [one] = put(store, group(body, 8))
            put_bytes[one.gid] = body
        elif operation == "reopen":
            store.close()
            store = opened()
        elif operation == "commit" and acked:
            store.do(Commit(acked[-1], generation))
        elif operation == "drop":
            store.do(FreeAbsent([]))
        elif operation in ("train", "ack"):
            batch = claim(store, generation, choose=first_of(8))
            if not isinstance(batch, str):
                ack(store, batch, commit=operation == "train")
                acked.append(batch.no)
    ledger = store.ask(Arrivals(list(put_bytes)))
    over = ("committed", "dropped")
    ended_gids = [gid for gid in put_bytes if ledger[gid].state in over]
    for gid, body in put_bytes.items():
        if gid not in ended_gids:
            assert store.read([gid])[0] == body
    found = [gid for gid in ended_gids if retired(store, gid) is not None]
    assert all(retired(store, gid) == put_bytes[gid] for gid in found)
    if bound == KEPT:
        assert found == ended_gids
    kept_bytes = sum(len(put_bytes[gid]) for gid in found)
    if bound:
        assert kept_bytes <= bound + 2 * 190 + 100 + 90  # held and active segments
    else:
        assert found == []
    store.close()
