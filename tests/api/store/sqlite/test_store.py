"""Guarantees of the store on disk."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import closing

import apsw
import pytest

from atroposlib.api.store import sqlite
from atroposlib.api.store.sql.ack import Discard
from atroposlib.api.store.sql.run import LoadRun, reset_run
from atroposlib.api.store.sqlite import (
    DATABASE,
    RESERVE_BYTES,
    SqliteStore,
    network_file_system,
    require_local,
)
from atroposlib.api.store.sqlite.retention import tolerated_bytes
from atroposlib.errors import ConfigError, CorruptPayload, StoreError, StoreFull, StoreLocked
from tests.api.store.store_talk import ack, claim, first_of, group, held, put, register


def by_hand(directory, sql, *values):
    connection = apsw.Connection(str(directory / DATABASE))
    rows = list(connection.execute(sql, values))
    connection.close()
    return rows


# --- owner and location of the directory --------------------------------------------


def test_a_data_directory_has_one_owner(store, tmp_path):
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}.*--data-dir"):
        SqliteStore(tmp_path)
    for name in ("lock", ".holder"):  # as a cleaner of old files does
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(StoreLocked, match="another process.*--data-dir"):
        SqliteStore(tmp_path)
    store.close()
    SqliteStore(tmp_path).close()


def test_an_sqlite_version_below_the_minimum_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "MIN_SQLITE_VERSION", apsw.SQLITE_VERSION_NUMBER + 1)
    with pytest.raises(ConfigError, match="install apsw"):
        SqliteStore(tmp_path)


@pytest.mark.parametrize("layout", [1, 4, 99])
def test_a_database_of_another_release_is_rejected_and_not_changed(tmp_path, layout):
    SqliteStore(tmp_path).close()
    by_hand(tmp_path, f"PRAGMA user_version = {layout}")
    for _ in range(2):  # the second also shows that the first let go of the lock
        with pytest.raises(ConfigError, match=f"layout {layout}.*finish its run.*--data-dir"):
            SqliteStore(tmp_path)


@pytest.mark.parametrize(
    ("magic", "name"),
    [
        (0x6969, "NFS"),
        (0xFF534D42, "CIFS"),
        (0xFF534D42 - 2**32, "CIFS"),  # where the field is signed
        (0x794C7630, None),  # overlay
        (0x01021994, None),  # tmpfs
        (0xEF53, None),  # ext4
        (0x58465342, None),  # xfs
    ],
)
def test_network_file_systems_are_distinguished_from_local_ones(magic, name):
    assert network_file_system(magic) == name


def test_a_network_file_system_is_rejected_with_suggested_locations(tmp_path, monkeypatch):
    require_local(tmp_path)
    monkeypatch.setattr(
        "atroposlib.api.store.sqlite.magic_of",
        lambda path: 0x6969 if path == tmp_path else 0xEF53,
    )
    with pytest.raises(ConfigError, match="NFS.*--data-dir.*/dev/shm.*--store postgresql"):
        SqliteStore(tmp_path)


# --- kills, damage, full disks ------------------------------------------------------


def _put_and_die(directory, acknowledged):
    """Put in an endless loop; the process is killed in the middle of a transaction."""
    store = SqliteStore(directory)
    puts = 0

    def die(connection, name, pages):
        if puts >= 5:
            os.kill(os.getpid(), signal.SIGKILL)  # written to the log, not yet answered
        return apsw.SQLITE_OK

    store._database.raw.set_wal_hook(die)
    while True:
        put(store, group(f"{puts}" * 50_000, key=f"{puts}"), revision=0)
        puts += 1
        acknowledged.value = puts


def test_a_kill_within_a_transaction_loses_no_acknowledged_group(tmp_path):
    context = multiprocessing.get_context("spawn")
    acknowledged = context.Value("i", 0)
    process = context.Process(target=_put_and_die, args=(tmp_path, acknowledged))
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL and acknowledged.value >= 5
    store = SqliteStore(tmp_path)
    kept = held(store)
    assert acknowledged.value <= kept <= acknowledged.value + 1
    payloads = store.read(range(1, kept + 1))
    assert payloads == [f"{i}".encode() * 50_000 for i in range(kept)]
    assert put(store, group("0" * 50_000, key="0"))[0].duplicate
    store.close()


def test_a_changed_payload_is_never_delivered(tmp_path, store):
    put(store, group("right"), group("other"), group("third"))
    with open(tmp_path / "payload-00000001.log", "r+b") as log:
        log.write(b"wrongotherwrong")
    with pytest.raises(CorruptPayload, match="group 1, 3") as refused:
        store.read([1, 2, 3])
    assert refused.value.gids == (1, 3)
    assert store.read([2])[0] == b"other"


def test_puts_are_rejected_before_the_disk_is_full_and_claims_continue(tmp_path):
    store = SqliteStore(tmp_path, free_bytes=lambda _: RESERVE_BYTES * 2)
    put(store, group("a" * 2_000_000, 8, key="k"))
    wal = tmp_path / f"{DATABASE}-wal"
    log_bytes = (tmp_path / "payload-00000001.log").stat().st_size
    full = RESERVE_BYTES - wal.stat().st_size  # the log of SQLite is part of the reserve

    def free_bytes():
        now = sum(file.stat().st_size for file in tmp_path.glob("payload-*.log"))
        return full + log_bytes - now

    store._free_bytes = lambda _: free_bytes()
    with pytest.raises(StoreFull, match="reserve"):
        put(store, group("b" * 100_000))
    assert put(store, group("a" * 2_000_000, 8, key="k"))[0].duplicate
    batch = claim(store, register(store))
    assert ack(store, batch, commit=True)
    store.ask(LoadRun())
    register(store)  # further commits seal the segment of the retired payload and free it
    register(store)
    assert not put(store, group("b" * 1_900_000))[0].duplicate
    store.close()


def test_retired_payloads_on_disk_are_bounded(tmp_path):
    store = SqliteStore(tmp_path, max_bytes=10_000, segment_bytes=1000)
    generation = register(store)
    put(store, group("s" * 50, 1, key="stays"))
    for i in range(100):
        put(store, group(f"{i}".ljust(500), 8), group(f"{i}" * 10, 1))
        ack(store, claim(store, generation, choose=first_of(8)), commit=True)
        live = store.stats().retained_bytes
        assert store.stats().disk_bytes <= live + tolerated_bytes(live, 1000) + 3000
    assert store.read([1])[0] == b"s" * 50
    assert store.stats().disk_bytes == sum(
        file.stat().st_size for file in tmp_path.glob("payload-*.log")
    )
    store.close()


# --- the writer ---------------------------------------------------------------------


def test_puts_wait_while_too_many_retired_payloads_are_on_the_disk(store, monkeypatch):
    monkeypatch.setattr(store, "max_bytes", 100)
    monkeypatch.setattr(store, "_segment_bytes", 100)
    put(store, group("x" * 90))
    store._log.disk_bytes = sqlite.UNSEALED_BYTES + 300
    with pytest.raises(StoreFull, match="still being freed"):
        put(store, group("a"))
    put(store, group("a"))  # the disk is looked at again at each commit


def test_calls_on_a_closed_store_raise_an_error(store):
    store.close()
    for use in (store.stats, lambda: store.do(reset_run), lambda: store.read([1])):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_a_payload_with_a_damaged_digest_is_discarded_and_blocks_no_claim(tmp_path):
    store = SqliteStore(tmp_path)
    put(store, group("a" * 8, 8), group("b" * 8, 8))
    generation = register(store)
    store.close()
    connection = apsw.Connection(str(tmp_path / DATABASE))
    connection.execute("UPDATE groups SET digest = 'x' WHERE gid = 1")
    connection.close()
    store = SqliteStore(tmp_path)
    batch = claim(store, generation)
    with pytest.raises(CorruptPayload) as refused:
        store.read(batch.gids)
    store.do(Discard(batch.no, refused.value.gids))
    assert claim(store, generation).gids == (2,)
    store.close()


def test_the_files_are_for_their_owner_only(tmp_path):
    before = os.umask(0o022)
    try:
        with closing(SqliteStore(tmp_path / "new" / "data")) as store:
            put(store, group("prompt"))
            modes = {p.name: p.stat().st_mode & 0o777 for p in store._data_dir.iterdir()}
            assert store._data_dir.stat().st_mode & 0o777 == 0o700
        assert set(modes.values()) == {0o600} and len(modes) >= 3
    finally:
        os.umask(before)
