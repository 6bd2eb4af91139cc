"""Payload log: what a crash leaves behind, failed commits, moved payloads."""

from __future__ import annotations

import errno

import apsw
import pytest

from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.api.store.sqlite.segment_files import SegmentFiles
from atroposlib.errors import CorruptPayload, StoreError, StoreFull
from tests.api.store.store_talk import ack, claim, first_of, group, put, register


def segments(directory):
    """Bytes by number."""
    files = SegmentFiles(directory)
    return {no: files.path(no).read_bytes() for no in files.numbers()}


def test_a_payload_is_in_the_log_once_and_not_in_the_database(tmp_path, store):
    put(store, group("first"), group("second", key="k"))
    put(store, group("second", key="k"))
    assert segments(tmp_path) == {1: b"firstsecond"}
    store.close()
    assert b"second" not in (tmp_path / DATABASE).read_bytes()


def test_the_next_opening_removes_what_no_row_names(tmp_path):
    store = SqliteStore(tmp_path, segment_bytes=4)
    put(store, group("first"))
    store.close()
    for name in ("payload-00000001.log", "payload-00000002.log"):
        with open(tmp_path / name, "ab") as file:
            file.write(b"torn")
    SqliteStore(tmp_path).close()
    assert segments(tmp_path) == {1: b"first"}


def test_damage_of_the_segment_table_removes_no_payload(tmp_path):
    store = SqliteStore(tmp_path)
    put(store, group("first"), group("second"))
    store.close()
    connection = apsw.Connection(str(tmp_path / DATABASE))
    connection.execute("UPDATE segment SET no = 5, n_bytes = 3, live_bytes = -1")
    connection.close()
    store = SqliteStore(tmp_path)
    put(store, group("third"))
    assert store.read([1, 2, 3]) == [b"first", b"second", b"third"]
    store.close()


def test_bytes_of_a_failed_commit_are_not_written_over(tmp_path, store, monkeypatch):
    # The failed COMMIT may be on the disk: after a power cut its row names these bytes.
    original, failed = store._database.raw.execute, []

    class Failing:
        def __getattr__(self, name):
            return getattr(raw, name)

        def execute(self, sql, *values):
            if sql == "COMMIT" and not failed:
                failed.append(sql)
                raise apsw.IOError("sync")
            return original(sql, *values)

    raw = store._database.raw
    monkeypatch.setattr(store._database, "raw", Failing())
    with pytest.raises(StoreError, match="sync"):
        put(store, group("first"), revision=0)
    assert put(store, group("next"))[0].gid == 1
    assert segments(tmp_path) == {1: b"firstnext"}
    assert store.read([1])[0] == b"next"
    monkeypatch.undo()


def test_a_write_to_a_full_disk_is_rejected_and_the_others_of_its_commit_are_kept(tmp_path):
    class Full(SegmentFiles):
        def write(self, no, start, parts):
            if sum(len(part) for part in parts) > 100:
                super().write(no, start, [parts[0][:7]])
                raise OSError(errno.ENOSPC, "no space left")
            super().write(no, start, parts)

    store = SqliteStore(tmp_path, files=Full(tmp_path))
    with pytest.raises(StoreFull, match="payload log.*no space"):
        put(store, group("x" * 200))
    put(store, group("y" * 50))
    assert store.read([1])[0] == b"y" * 50
    assert store.stats().retained_bytes == 50
    store.close()


def test_committed_segments_are_deleted_and_payloads_that_stay_are_moved(tmp_path):
    store = SqliteStore(tmp_path, segment_bytes=100)
    generation = register(store)
    for i in range(6):
        put(store, group(f"{i}" * 40, 8), group(f"{i}" * 10, 1), group(f"{i}" * 50, 8))
    while not isinstance(batch := claim(store, generation, choose=first_of(8)), str):
        ack(store, batch, commit=True)
    for _ in range(8):
        register(store)  # any commit moves
    kept = [gid for gid in range(1, 19) if gid % 3 == 2]
    assert store.read(kept) == [b"%d" % i * 10 for i in range(6)]
    assert sum(map(len, segments(tmp_path).values())) <= 300
    store.close()
    store = SqliteStore(tmp_path)
    assert store.read(kept) == [b"%d" % i * 10 for i in range(6)]
    store.close()


def test_a_reader_finds_a_payload_that_moved_since_it_read_the_row(tmp_path, store):
    put(store, group("moved"))
    before = store.ask(lambda c: store._rows(c, [1]))
    store.do(lambda c: (c.execute("DELETE FROM payload"), store._keep(c, 1, b"moved")))
    (tmp_path / "payload-00000001.log").write_bytes(b"?????moved")
    answers = [before]
    rows = store._rows
    store._rows = lambda c, **asked: answers.pop() if answers else rows(c, **asked)
    assert store.read([1])[0] == b"moved"


def test_an_unreadable_payload_is_not_moved_and_the_others_stay_readable(tmp_path):
    store = SqliteStore(tmp_path, segment_bytes=10)
    put(store, group("a" * 60, 8), group("b" * 5, 1), group("c" * 5, 1))
    put(store, group("d" * 10, 1))
    with open(tmp_path / "payload-00000001.log", "r+b") as file:
        file.truncate(66)
    generation = register(store)
    ack(store, claim(store, generation), commit=True)
    for _ in range(3):
        register(store)
    with pytest.raises(CorruptPayload) as refused:
        store.read([2, 3, 4])
    assert set(refused.value.gids) <= {2, 3} and store.read([4])[0] == b"d" * 10
    store.close()
