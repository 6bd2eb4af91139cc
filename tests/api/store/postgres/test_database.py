"""PostgreSQL writer and readers: lost sessions, lost responses to COMMIT."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.api.store.postgres import PostgresStore, split_schema
from atroposlib.errors import StoreError
from tests.api.store.postgres.postgres_line import Line
from tests.api.store.store_talk import ack, claim, group, held, put, register
from tests.postgres_server import running_server

pytest.importorskip("psycopg")
from atroposlib.api.store.postgres import connection, database  # noqa: E402


def test_sessions_that_the_server_ended_are_replaced_without_an_error(postgres, replicas):
    store = replicas()
    generation = register(store)
    put(store, group("a", 8))
    postgres.drop_connections()
    put(store, group("b", 8), revision=store.stats().revision)
    postgres.drop_connections()
    first = claim(store, generation)
    postgres.drop_connections()
    assert store.read(first.gids)[0] == b"a"
    postgres.drop_connections()
    assert ack(store, first, commit=True)


def test_a_replica_frozen_inside_its_transaction_loses_the_lock_of_the_run(
    replicas, monkeypatch
):
    monkeypatch.setattr(
        connection, "SETTINGS", connection.SETTINGS.replace("'10s'", "'200ms'")
    )
    frozen, other = replicas(), replicas()
    revision = other.stats().revision
    lost = database.PostgresDatabase(frozen._server)
    lost.begin()
    [stored] = put(other, group("a"), revision=revision)
    assert not stored.duplicate
    with pytest.raises(lost.faults):
        lost.execute("SELECT 1")
    lost.close()


@pytest.mark.alone
def test_a_transaction_that_a_crash_lost_is_not_taken_for_another_one_with_its_id():
    with running_server() as server:
        store = PostgresStore(server.url())
        lost = database.PostgresDatabase(store._server)
        lost.begin()
        lost.execute("INSERT INTO run_document VALUES ('lost', '')")
        [(number,)] = lost.execute("SELECT pg_current_xact_id()::text")
        server.kill()
        server.start()
        reused = 0
        while reused < int(number):  # another session commits under the same id
            sql = "SELECT pg_current_xact_id()::text"
            reused = int(store.do(lambda c: c.execute(sql))[0][0])
        with pytest.raises(lost.faults):
            lost.commit()
        assert not store.ask(lambda c: c.execute("SELECT 1 FROM run_document"))
        lost.close()
        store.close()


@pytest.fixture
def line(postgres):
    line = Line(postgres.folder)
    yield line
    line.close()


def test_a_commit_whose_reply_was_lost_is_looked_up_and_applied_once(line, url, replicas):
    store = replicas(line.url(split_schema(url)[1]))
    revision = store.stats().revision
    line.break_at_commit("after")
    [stored] = put(store, group("a"), revision=revision)
    assert (stored.gid, stored.duplicate, held(store)) == (1, False, 1)


def test_calls_to_a_frozen_server_end_and_succeed_when_it_goes_on(
    line, url, replicas, monkeypatch
):
    monkeypatch.setattr(database, "READ_SILENCE_S", 2.0)
    monkeypatch.setattr(connection.Raw, "silence_s", 2.0)
    address = line.url(split_schema(url)[1]) + "&connect_timeout=2"
    store = replicas(address, reconnect_timeout_s=0.0)
    put(store, group("a"))
    revision = store.stats().revision
    line.flowing.clear()
    for call in (store.stats, lambda: put(store, group("b"), revision=revision)):
        with pytest.raises(StoreError):
            call()
    line.flowing.set()
    deadline = time.monotonic() + 60
    while (n_held := held_or_none(store)) is None:
        assert time.monotonic() < deadline
    assert n_held == 1


def test_a_server_that_answers_no_connection_ends_a_call_before_a_slow_statement_would(
    line, url, replicas, monkeypatch
):
    monkeypatch.setattr(connection, "PROBE_AFTER_S", 0.3)
    monkeypatch.setattr(connection, "PROBE_OPTIONS", {"connect_timeout": 2})
    address = line.url(split_schema(url)[1]) + "&connect_timeout=2"
    store = replicas(address, reconnect_timeout_s=2.0)
    put(store, group("a"))
    store.do(lambda c: c.execute("SELECT pg_sleep(1.5)"))  # slow, and waited for
    revision = store.stats().revision
    line.flowing.clear()
    with ThreadPoolExecutor(12) as pool:
        calls = [
            pool.submit(put, store, group(f"b{i}", key=f"{i}"), revision=revision)
            for i in range(12)
        ]
        for call in calls:  # by WRITE_SILENCE_S the first would take longer than this
            with pytest.raises(StoreError):
                call.result(timeout=connection.WRITE_SILENCE_S / 2)
    line.flowing.set()
    deadline = time.monotonic() + 60
    while (n_held := held_or_none(store)) is None:
        assert time.monotonic() < deadline
    assert n_held == 1


def held_or_none(store):
    try:
        return held(store)
    except StoreError:
        return None


def test_a_commit_that_never_reached_the_server_raises_and_changes_no_rows(
    line, url, replicas
):
    store = replicas(line.url(split_schema(url)[1]))
    revision = store.stats().revision
    line.break_at_commit("before")
    with pytest.raises(StoreError):
        put(store, group("a"), revision=revision)
    assert held(store) == 0
    put(store, group("b"))
    assert held(store) == 1


def test_each_operation_of_a_lost_group_commit_gets_its_correct_result(line, url, replicas):
    store = replicas(line.url(split_schema(url)[1]))
    revision = store.stats().revision

    def post(i):
        if i % 10 == 0:
            line.break_at_commit("after" if i % 20 else "before")
        try:
            return [one.gid for one in put(store, group(f"{i}"), revision=revision)]
        except StoreError:
            return []

    with ThreadPoolExecutor(8) as pool:
        answered = [gid for gids in pool.map(post, range(80)) for gid in gids]
    assert len(answered) == len(set(answered)) == held(store)
