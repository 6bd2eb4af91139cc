"""Archive over the payload log: retired payloads stay readable within a bound, and never return."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.api.common.records import Selection
from atroposlib.api.store.sqlite import RESERVE_BYTES, SqliteStore
from atroposlib.errors import CorruptPayload, StoreFull
from tests.api.store.store_talk import ack, claim, first_of, group, put, register

ROOT = Path(__file__).resolve().parents[4]
KEPT = 10**6


def retired(store, gid):
    """The payload, from the queue or the archive; None if it is freed."""
    try:
        return store.read([gid], retired=True)[0].data
    except CorruptPayload:
        return None


def test_a_committed_group_stays_readable_and_leaves_the_queue(tmp_path):
    store = SqliteStore(tmp_path, archive_bytes=KEPT)
    put(store, group("first", 8))
    generation = register(store)
    ack(store, claim(store, generation), commit=True)
    assert retired(store, 1) == b"first"
    with pytest.raises(CorruptPayload):
        store.read([1])
    stats = store.stats()
    assert (stats.retained_bytes, stats.groups_held) == (0, 0)
    assert store.rewind(0, generation).replayed == 0
    assert claim(store, generation) == "0 of 8"
    store.close()
    store = SqliteStore(tmp_path, archive_bytes=KEPT)
    assert retired(store, 1) == b"first"
    store.close()


def test_groups_dropped_as_stale_and_those_of_a_reset_are_archived(tmp_path):
    store = SqliteStore(tmp_path, archive_bytes=KEPT)
    put(store, group("stale"), group("left"))
    generation = register(store)
    claim(store, generation, choose=lambda q, f: Selection(dropped=(1,), blocked_reason="no"))
    store.reset()
    assert [retired(store, gid) for gid in (1, 2)] == [b"stale", b"left"]
    assert store.kept(0, 9) == [1, 2]
    store.close()


def test_without_an_archive_payloads_are_freed_and_those_of_before_too(tmp_path):
    store = SqliteStore(tmp_path, archive_bytes=KEPT, segment_bytes=4)
    put(store, group("first", 8))
    ack(store, claim(store, register(store)), commit=True)
    store.close()
    store = SqliteStore(tmp_path, archive_bytes=0, segment_bytes=4)
    put(store, group("second", 8))
    put(store, group("third", 8))
    assert retired(store, 1) is None
    store.close()


def test_on_a_full_disk_the_archive_gives_way_and_posts_go_on(tmp_path):
    free = [10**9]
    store = SqliteStore(
        tmp_path, archive_bytes=KEPT, segment_bytes=100, free_bytes=lambda _: free[0]
    )
    generation = register(store)
    for mark in "abc":
        put(store, group(mark * 100, 8))
        ack(store, claim(store, generation), commit=True)
    put(store, group("d" * 20, 8))
    free[0] = 0
    with pytest.raises(StoreFull):
        put(store, group("e" * 50, 8))
    assert retired(store, 1) is None  # freed by the commit of the rejected put
    free[0] = RESERVE_BYTES + 60
    put(store, group("e" * 50, 8))
    assert store.read([4])[0].data == b"d" * 20
    store.close()


OPERATIONS = st.lists(
    st.sampled_from(
        ["put", "put", "large", "train", "train", "ack", "commit", "drop", "reopen"]
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(operations=OPERATIONS, bound=st.sampled_from([0, 150, 400, KEPT]))
def test_queue_and_archive_hold_each_group_once_and_lose_the_oldest_first(
    tmp_path_factory, operations, bound
):
    folder = tmp_path_factory.mktemp("archived")

    def opened():
        return SqliteStore(folder, archive_bytes=bound, segment_bytes=100, synchronous="OFF")

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
            store.commit(acked[-1], generation)
        elif operation == "drop":
            store.free_absent([])
        elif operation in ("train", "ack"):
            batch = claim(store, generation, choose=first_of(8))
            if not isinstance(batch, str):
                ack(store, batch, commit=operation == "train")
                acked.append(batch.no)
    ledger = store.arrivals(list(put_bytes))
    over = ("committed", "dropped")
    ended_gids = [gid for gid in put_bytes if ledger[gid].state in over]
    for gid, body in put_bytes.items():
        if gid not in ended_gids:
            assert store.read([gid])[0].data == body
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


CHILD = """
import sys
import uuid
from pathlib import Path
from atroposlib.api.store.sqlite import SqliteStore
from tests.api.store.store_talk import ack, claim, first_of, group, put, register

store = SqliteStore(Path(sys.argv[1]), archive_bytes=2**30, segment_bytes=2000)
generation = register(store)
while True:
    [one] = put(store, group(b"7" * 300, 8, key=uuid.uuid4().hex))
    print("put", one.gid, flush=True)
    batch = claim(store, generation, choose=first_of(8))
    ack(store, batch, commit=True)
    print("acked", batch.gids[0], flush=True)
"""


@pytest.mark.slow
def test_no_group_is_lost_between_queue_and_archive_by_kill_9(tmp_path):
    acknowledged = set()
    for cycle in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = [child.stdout.readline() for _ in range(5 + 7 * cycle)]
        child.send_signal(signal.SIGKILL)
        lines += child.communicate()[0].splitlines(keepends=True)
        acknowledged |= {int(line.split()[1]) for line in lines if line.endswith("\n")}
        store = SqliteStore(tmp_path, archive_bytes=2**30, segment_bytes=2000)
        lost = [gid for gid in acknowledged if retired(store, gid) != b"7" * 300]
        store.close()
        assert lost == []
