"""SQLite connections: checkpoints, free pages, concurrent readers, damaged pages."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.api.store.sqlite import database as sqlite_database
from atroposlib.errors import CorruptPayload
from tests.api.store.store_talk import ack, claim, group, held, put, register


def test_an_unreadable_page_damages_only_the_groups_on_it(tmp_path):
    store = SqliteStore(tmp_path)
    put(store, *(group(bytes([65 + i]) * 100_000, 4) for i in range(4)))
    store.close()
    path = tmp_path / DATABASE
    file = bytearray(path.read_bytes())
    inside = file.index(b"B" * 10_000)  # the payload of group 2: its next page is lost
    page = inside - inside % sqlite_database.PAGE_BYTES
    file[page : page + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(file)
    store = SqliteStore(tmp_path)
    with pytest.raises(CorruptPayload) as refused:
        store.read([1, 2, 3, 4])
    assert refused.value.gids == (2,)
    assert store.read([4])[0].data == b"D" * 100_000
    store.close()


def test_the_file_size_does_not_grow_with_the_number_of_groups_processed(tmp_path):
    store = SqliteStore(tmp_path)
    generation = register(store)

    def pass_through(n):
        for _ in range(n):
            put(store, *(group(os.urandom(250_000), 4) for _ in range(2)))
            ack(store, claim(store, generation), commit=True)
        return (tmp_path / DATABASE).stat().st_size, (
            tmp_path / f"{DATABASE}-wal"
        ).stat().st_size

    pass_through(40)
    database, log = pass_through(40)
    assert database < 4 * 2**20
    assert log < 2 * sqlite_database.CHECKPOINT_PAGES * sqlite_database.PAGE_BYTES
    store.close()


def test_continuous_readers_do_not_block_the_wal_reset(tmp_path, store, monkeypatch):
    monkeypatch.setattr(sqlite_database, "CHECKPOINT_PAGES", 20)
    monkeypatch.setattr(sqlite_database, "MAX_LOG_PAGES", 60)
    put(store, group("x" * 200_000, 8))
    stop = threading.Event()

    def read():
        while not stop.is_set():
            store.read([1])

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for i in range(60):
            put(store, group(os.urandom(100_000)))
        stop.set()
        for reader in readers:
            reader.result(timeout=30)
    pages = (tmp_path / f"{DATABASE}-wal").stat().st_size / sqlite_database.PAGE_BYTES
    assert pages < 60 + 20


def test_payloads_are_read_during_a_write(store):
    put(store, group("a"))
    entered, leave = threading.Event(), threading.Event()

    def slow(connection):
        entered.set()
        assert leave.wait(30)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(store._write, slow)
        assert entered.wait(30)
        assert store.read([1])[0].data == b"a"
        assert held(store) == 1
        leave.set()
        writing.result(timeout=30)
