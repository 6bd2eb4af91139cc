"""Writer thread on SQLite: shared transactions, rejected operations, unexpected errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import apsw
import pytest

from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.errors import StoreError
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
