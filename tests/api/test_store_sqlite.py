"""What only a store on disk can promise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import apsw
import pytest

from atroposlib.api.batching import select
from atroposlib.api.records import NewGroup
from atroposlib.api.store import sqlite
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.errors import ConfigError, CorruptPayload, StoreError, StoreFull, StoreLocked


def group(text="{}", n_seq=4, **more):
    return NewGroup(payload=text.encode(), n_seq=n_seq, **more)


def claim(store, generation, size=8):
    return store.claim(generation, size, lambda queue: select(queue, size, {}), 0.0, 10.0)


def test_everything_is_there_after_a_restart(tmp_path):
    store = SqliteStore(tmp_path)
    store.put([group("a", key="k"), group("b"), group("c", env=1, buffered=True)])
    generation = store.register()
    first = claim(store, generation)
    store.save("run", b"document")
    store.close()

    store = SqliteStore(tmp_path)
    assert store.load("run") == b"document"
    assert store.buffered() == [(3, 1, 4)]
    assert store.put([group("a", key="k")])[0].duplicate
    again = claim(store, generation)
    assert (again.no, again.gids, again.epoch) == (first.no, first.gids, 2)
    assert store.read(again.gids) == [b"a", b"b"]
    store.close()


def test_a_data_directory_has_one_owner(tmp_path):
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreLocked, match="--data-dir"):
        SqliteStore(tmp_path)
    store.close()
    SqliteStore(tmp_path).close()


def test_an_old_sqlite_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "OLDEST_SQLITE", apsw.SQLITE_VERSION_NUMBER + 1)
    with pytest.raises(ConfigError, match="install apsw"):
        SqliteStore(tmp_path)


def test_a_file_of_a_later_release_is_refused(tmp_path):
    SqliteStore(tmp_path).close()
    connection = apsw.Connection(str(tmp_path / DATABASE))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ConfigError, match="layout 99"):
        SqliteStore(tmp_path)


def test_a_changed_payload_is_never_delivered(tmp_path):
    SqliteStore(tmp_path).close()
    store = SqliteStore(tmp_path)
    store.put([group("right")])
    store.close()
    connection = apsw.Connection(str(tmp_path / DATABASE))
    connection.execute("UPDATE payload SET body = ?", (b"wrong",))
    connection.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(CorruptPayload, match="group 1"):
        store.read([1])
    store.close()


def test_puts_stop_before_the_disk_is_full_and_draining_goes_on(tmp_path):
    free = [sqlite.RESERVE_BYTES * 2]
    store = SqliteStore(tmp_path, free_bytes=lambda _: free[0])
    store.put([group("a", 8, key="k")])
    free[0] = sqlite.RESERVE_BYTES
    with pytest.raises(StoreFull):
        store.put([group("b")])
    assert store.put([group("a", 8, key="k")])[0].duplicate
    generation = store.register()
    batch = claim(store, generation)
    assert store.ack(batch.no, generation, batch.epoch)
    free[0] = sqlite.RESERVE_BYTES * 2
    assert not store.put([group("b")])[0].duplicate
    store.close()


def test_an_operation_that_sqlite_refuses_does_not_fail_its_neighbours(tmp_path):
    store = SqliteStore(tmp_path)
    store._connection.limit(apsw.SQLITE_LIMIT_LENGTH, 1000)

    def post(i):
        try:
            return store.put([group("x" * (2000 if i % 5 == 0 else 10), key=f"{i}")])
        except StoreError:
            return None

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(post, range(40)))
    assert [i for i, outcome in enumerate(outcomes) if outcome is None] == list(
        range(0, 40, 5)
    )
    assert sum(tally.groups for tally in store.stats().tallies) == 32
    store.close()


def test_many_waiting_operations_share_transactions(tmp_path):
    commits = []
    store = SqliteStore(tmp_path)
    store._connection.set_commit_hook(lambda: bool(commits.append(1)))
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda i: store.put([group(f"{i}")]), range(200)))
    assert len(commits) < 200
    store.close()


def test_a_closed_store_says_so(tmp_path):
    store = SqliteStore(tmp_path)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.stats()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unforeseen_error_in_the_writer_leaves_nobody_waiting(tmp_path):
    store = SqliteStore(tmp_path)

    def broken(queue):
        raise ZeroDivisionError

    with pytest.raises(StoreError):
        store.claim(store.register(), 8, broken, 0.0, 1.0)
    with pytest.raises(StoreError):
        store.put([group()])
    store.close()
