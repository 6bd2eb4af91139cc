"""Writer thread on SQLite: shared transactions, rejected operations, unexpected errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import apsw
import pytest

from atroposlib.api.decisions.batching import complete_buffer
from atroposlib.api.store.sql.put import ReplyInDoubt
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.errors import KeyConflict, StoreError
from tests.api.store.store_talk import claim, group, held, put, register


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path)
    yield store
    store.close()


def test_an_operation_that_sqlite_rejects_does_not_fail_operations_of_its_transaction(store):
    store._database.raw.limit(apsw.SQLITE_LIMIT_LENGTH, 1000)

    def post(i):
        key = f"{i}" * (2000 if i % 5 == 0 else 1)
        try:
            return put(store, group("x", key=key), revision=0)
        except StoreError:
            return None

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(post, range(40)))
    failed = [i for i, outcome in enumerate(outcomes) if outcome is None]
    assert failed == list(range(0, 40, 5))
    assert held(store) == 32


@pytest.mark.parametrize("key", ["\ud800", "a\x00b"])
def test_a_key_that_is_not_text_fails_only_its_put(store, key):
    try:
        put(store, group("x", key=key))
    except StoreError:
        pass
    assert put(store, group("y"))[0].duplicate is False


def held_back(store, *posts):
    """Results or errors of puts that waited for the writer together."""
    begun, go_on = threading.Event(), threading.Event()
    store._writer.submit(lambda c: begun.set() or go_on.wait(60))
    begun.wait(60)
    puts = [store.submit_put([one], 0, complete_buffer) for one in posts]
    go_on.set()
    return [put.exception() or put.result()[0] for put in puts]


def test_waiting_puts_run_as_one_operation(store):
    savepoints = []
    store._database.raw.set_exec_trace(
        lambda _, sql, __: savepoints.append(sql) or True if "SAVEPOINT" in sql else True
    )
    stored = held_back(store, *(group(f"{i}", key=f"{i % 3}") for i in (0, 1, 2)))
    assert [one.gid for one in stored] == [1, 2, 3] and not savepoints
    again = held_back(store, group("3", key="3"), group("0", key="0"), group("3", key="3"))
    assert [(one.gid, one.duplicate) for one in again] == [(4, False), (1, True), (4, True)]


def test_of_waiting_puts_only_the_rejected_one_fails(store):
    first, conflict, last = held_back(
        store, group("a", key="1"), group("b", key="1"), group("c", key="2")
    )
    assert (first.gid, last.gid) == (1, 2) and isinstance(conflict, KeyConflict)


def test_of_equal_waiting_puts_without_a_key_the_second_is_in_doubt(store):
    first, again, other = held_back(store, group("a"), group("a"), group("b"))
    assert (first.gid, other.gid) == (1, 2) and isinstance(again, ReplyInDoubt)


def test_many_waiting_operations_share_transactions(store):
    commits = []
    store._database.raw.set_commit_hook(lambda: bool(commits.append(1)))
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda i: put(store, group(f"{i}"), revision=0), range(200)))
    assert len(commits) < 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unexpected_error_in_the_writer_fails_all_waiting_callers(store):
    put(store, group("a", 8))

    def broken(queue, fair_share):
        raise ZeroDivisionError

    with pytest.raises(StoreError, match="log"):
        claim(store, register(store), choose=broken)
    assert put(store, group("b", 8))[0].gid == 2
    assert claim(store, register(store)).gids == (1,)
