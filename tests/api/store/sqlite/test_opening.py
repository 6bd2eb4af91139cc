"""Data directories that lost a file: what cannot be read is reported, and nothing is deleted."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import apsw
import pytest

from atroposlib.api.store.sql.ack import Discard, dead_batches
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.errors import ConfigError, CorruptPayload, StoreFull
from tests.api.store.store_talk import ack, claim, group, held, put, register

WAL = f"{DATABASE}-wal"
SIZE = 40_000


def _fill_and_die(directory):
    store = SqliteStore(Path(directory), segment_bytes=4 * SIZE)
    for no in range(12):
        put(store, group(f"{no:x}" * SIZE, key=f"{no}"))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A data directory of 12 groups, whose process was killed."""
    directory = tmp_path_factory.mktemp("killed")
    process = multiprocessing.get_context("spawn").Process(
        target=_fill_and_die, args=(str(directory),)
    )
    process.start()
    process.join()
    return directory


@pytest.fixture
def directory(killed, tmp_path):
    return Path(shutil.copytree(killed, tmp_path / "data"))


def _sizes(directory):
    return {file.name: file.stat().st_size for file in directory.glob("payload-*.log")}


def _remove(name):
    return lambda directory: (directory / name).unlink()


def _empty(name):
    return lambda directory: (directory / name).write_bytes(b"")


def _remove_both(directory):
    for name in (DATABASE, WAL):
        (directory / name).unlink()


def _checkpointed_early(directory):
    """A copy of the database, whole and closed, from before the last groups."""
    kept = [(no, size) for no, size in _sizes(directory).items()]
    SqliteStore(directory).close()
    connection = apsw.Connection(str(directory / DATABASE))
    connection.execute("DELETE FROM segment WHERE no > 2")
    connection.execute("DELETE FROM payload WHERE segment > 2")
    connection.close()
    assert len(kept) > 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove(WAL), "-wal is missing.*put it back.*Nothing was deleted"),
        (_empty(WAL), "-wal is missing or empty.*put it back"),
        (_remove(DATABASE), "missing or empty, but .* payload-.*log of the"),
        (_empty(DATABASE), "missing or empty, but .* payload-.*log of the"),
        (_remove_both, "missing or empty, but .* payload-.*log of the"),
        (_checkpointed_early, "older than its payload files"),
    ],
    ids=["log removed", "log emptied", "removed", "emptied", "both removed", "older copy"],
)
def test_a_database_that_does_not_know_its_payload_files_is_refused(
    directory, damage, message
):
    damage(directory)
    before = _sizes(directory)
    for _ in range(3):  # the first attempt must not make the next one pass
        with pytest.raises(ConfigError, match=message):
            SqliteStore(directory)
        assert _sizes(directory) == before


def test_after_a_kill_with_all_files_every_group_is_there(directory):
    store = SqliteStore(directory)
    assert held(store) == 12
    assert store.read(range(1, 13))[11] == b"b" * SIZE
    store.close()


def test_files_of_a_closed_store_open_without_a_log_and_by_the_documented_command(
    directory, tmp_path
):
    SqliteStore(directory).close()
    assert not (directory / WAL).exists()
    shutil.copytree(directory, tmp_path / "copy")
    store = SqliteStore(tmp_path / "copy")
    (tmp_path / "copy" / WAL).unlink()  # while it is in use
    shutil.copytree(tmp_path / "copy", tmp_path / "again")
    with pytest.raises(ConfigError, match="PRAGMA application_id = 0"):
        SqliteStore(tmp_path / "again")
    connection = apsw.Connection(str(tmp_path / "again" / DATABASE))
    connection.execute("PRAGMA application_id = 0")
    connection.close()
    again = SqliteStore(tmp_path / "again")
    assert held(again) == 12
    again.close()
    store.close()


def test_a_close_that_cannot_be_recorded_keeps_the_log(tmp_path):
    store = SqliteStore(tmp_path)
    put(store, group("x" * 100, key="k"))
    store._database.raw.execute("PRAGMA query_only = 1")  # as a disk that takes no write
    store.close()
    assert (tmp_path / WAL).exists()
    store = SqliteStore(tmp_path)
    assert held(store) == 1
    store.close()


def test_queued_groups_whose_payload_file_is_gone_are_reported_and_set_aside(
    directory, caplog
):
    (directory / "payload-00000001.log").unlink()
    with caplog.at_level(logging.ERROR):
        store = SqliteStore(directory)
    [line] = [record.getMessage() for record in caplog.records]
    assert "payload-00000001.log has 0 of 160000 bytes: 4 queued groups are damaged" in line
    generation = register(store)
    batch = claim(store, generation)
    with pytest.raises(CorruptPayload):
        store.read([batch.members[0].gid])
    store.do(Discard(batch.no, [batch.members[0].gid]))
    assert store.ask(dead_batches)[0].groups == 1
    store.close()


def test_a_store_is_used_as_before_after_a_full_disk(tmp_path):
    store = SqliteStore(tmp_path, free_bytes=lambda _: 0)
    with pytest.raises(StoreFull):
        put(store, group("x" * 100))
    store.close()
    store = SqliteStore(tmp_path)
    put(store, group("x" * 100, 8))
    ack(store, claim(store, register(store)), commit=True)
    store.close()
