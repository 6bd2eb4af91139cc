"""SQLite connections: checkpoints, concurrent readers, damaged pages, other layouts."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.api.store.sqlite import DATABASE, SqliteStore, database as sqlite_database
from atroposlib.errors import CorruptPayload
from tests.api.store.store_talk import ack, claim, group, held, put, register


def test_an_unreadable_page_damages_only_the_groups_on_it(tmp_path):
    store = SqliteStore(tmp_path)
    put(store, *(group("x" * 9, 4, key=bytes([65 + i]).decode() * 1000) for i in range(4)))
    store.close()
    path = tmp_path / DATABASE
    file = bytearray(path.read_bytes())
    inside = file.index(b"B" * 1000)  # the row of group 2: the length of its key is wrong
    page = inside - inside % sqlite_database.PAGE_BYTES
    file[page : page + 1] = b"\xff"
    path.write_bytes(file)
    store = SqliteStore(tmp_path)
    with pytest.raises(CorruptPayload) as refused:
        store.read([1, 2, 3, 4])
    assert 2 in refused.value.gids
    store.close()


def test_the_files_do_not_grow_with_the_number_of_groups_processed(tmp_path):
    store = SqliteStore(tmp_path, segment_bytes=2**20)
    generation = register(store)

    def pass_through(n):
        for _ in range(n):
            put(store, *(group(os.urandom(250_000), 4) for _ in range(2)))
            ack(store, claim(store, generation), commit=True)
        sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
        return sizes.pop(f"{DATABASE}-wal"), sum(sizes.values())

    pass_through(40)
    wal, others = pass_through(40)
    assert others < 4 * 2**20
    assert wal < 2 * sqlite_database.CHECKPOINT_PAGES * sqlite_database.PAGE_BYTES
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
            put(store, group("x", key=f"{i}"))
        stop.set()
        for reader in readers:
            reader.result(timeout=600)
    pages = (tmp_path / f"{DATABASE}-wal").stat().st_size / sqlite_database.PAGE_BYTES
    assert pages < 60 + 20


def test_payloads_are_read_during_a_write(store):
    put(store, group("a"))
    entered, leave = threading.Event(), threading.Event()

    def slow(connection):
        entered.set()
        assert leave.wait(600)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(store.do, slow)
        assert entered.wait(600)
        assert store.read([1])[0] == b"a"
        assert held(store) == 1
        leave.set()
        writing.result(timeout=600)
