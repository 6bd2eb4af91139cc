"""PostgreSQL server: checks at the start, tables, escaped text, retries."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.api.store.postgres import PostgresStore
from atroposlib.errors import ConfigError, StoreError
from tests.api.store.store_talk import group, held, put
from tests.postgres_server import running_server


def test_the_error_of_an_unreachable_server_omits_the_password():
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError) as refused:
        PostgresStore("postgresql://u:sekret@127.0.0.1:1/x", start_timeout_s=0)
    assert "sekret" not in str(refused.value) and "127.0.0.1" in str(refused.value)


def test_the_error_of_an_invalid_url_omits_the_url():
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError) as refused:
        open_store("postgresql://u:sekret@h/x?nonsense=1")
    assert "sekret" not in str(refused.value)


def test_a_read_only_role_is_rejected(postgres, url, replicas):
    replicas().do(lambda c: c.execute("CREATE ROLE reader LOGIN"))
    replicas().do(
        lambda c: c.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    )
    with pytest.raises(ConfigError, match="standby or read-only"):
        PostgresStore(url.replace("atropos@", "reader@"))


@pytest.mark.alone
def test_a_standby_and_a_server_without_fsync_are_refused():
    with running_server() as server:
        server.stop()
        conf = server.data / "postgresql.conf"
        conf.write_text(conf.read_text() + "fsync = off\n")
        server.start()
        with pytest.raises(ConfigError, match="fsync=off"):
            PostgresStore(server.url())
        server.shut_down()
        server.make_standby()
        server.start()
        with pytest.raises(ConfigError, match="standby or read-only"):
            PostgresStore(server.url())


def test_keys_may_contain_characters_that_text_columns_reject(replicas):
    store = replicas()
    odd = ["a\0b", "a\\0b", "a\\\0", "\\\\", "%s ? $1", "ü\u2028"]
    stored = put(store, *(group(key, key=key) for key in odd))
    assert [one.duplicate for one in stored] == [False] * len(odd)
    again = put(store, *(group(key, key=key) for key in odd))
    assert [(one.gid, one.duplicate) for one in again] == [(one.gid, True) for one in stored]


@pytest.mark.alone
def test_calls_fail_while_the_server_is_down_and_succeed_after_its_return():
    with running_server() as server:
        store = PostgresStore(server.url(), reconnect_timeout_s=0.5)
        put(store, group("a"))
        server.shut_down()
        with pytest.raises(StoreError):
            put(store, group("lost"), revision=0)
        with pytest.raises(StoreError):
            store.stats()
        server.start()
        deadline = time.monotonic() + 30
        while (answer := put_or_none(store, group("b"))) is None:
            assert time.monotonic() < deadline
        assert [one.gid for one in answer] == [2] and held(store) == 2
        server.shut_down()
        store.close()


@pytest.mark.alone
def test_a_store_that_opens_before_its_server_waits_for_it(caplog):
    with running_server() as server:
        server.shut_down()
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(PostgresStore, server.url())
            while "waiting at most 120 s: PostgreSQL: " not in caplog.text:
                assert not opening.done()
            server.start()
            opening.result().close()


def test_a_role_that_does_not_exist_is_refused_without_a_wait(url):
    with pytest.raises(StoreError, match='"nobody_known" does not exist'):
        PostgresStore(url.replace("atropos@", "nobody_known@"))


def test_options_in_the_url_replace_those_of_the_store(url, replicas):
    store = replicas(url + "&application_name=mine")
    assert store.ask(lambda c: c.execute("SHOW application_name")) == [("mine",)]


def test_leases_follow_the_clock_of_the_server_rather_than_that_of_the_host(
    replicas, monkeypatch
):
    store, true_time = replicas(), time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 3600)
    asked = "SELECT extract(epoch FROM clock_timestamp())::float8"
    [(of_the_server,)] = store.do(lambda c: c.execute(asked))
    service = create_app(store).state.service
    assert service.context.clock() == pytest.approx(of_the_server, abs=60)


def put_or_none(store, one):
    try:
        return put(store, one)
    except StoreError:
        return None
