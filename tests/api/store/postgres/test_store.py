"""What only a store on PostgreSQL can get wrong: the server, the line to it, its neighbours."""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

import atroposlib.api.store
from atroposlib.api.common.records import LeasedBatch
from atroposlib.api.store import open_store
from atroposlib.api.store.postgres.store import PostgresStore, split_schema
from atroposlib.errors import ConfigError, RunChanged, StaleGeneration, StoreError
from tests.api.store.postgres.postgres_line import Line
from tests.api.store.store_talk import ack, claim, group, held, in_order, put, register
from tests.postgres_server import running_server


@pytest.fixture
def url(postgres):
    return postgres.fresh_url()


@pytest.fixture
def replicas(url):
    """Opens any number of stores over one schema."""
    opened = []

    def another(address=url, **settings):
        opened.append(PostgresStore(address, **settings))
        return opened[-1]

    yield another
    for store in opened:
        store.close()


# --- what it opens, and what it refuses -----------------------------------------------


def test_the_schema_is_taken_out_of_the_url():
    assert split_schema("postgresql://h/d") == ("postgresql://h/d", "atropos")
    url = "postgresql://u:p%40@h1,h2:5/d?sslmode=require&schema=run_2&connect_timeout=3"
    rest = "postgresql://u:p%40@h1,h2:5/d?sslmode=require&connect_timeout=3"
    assert split_schema(url) == (rest, "run_2")


@pytest.mark.parametrize("schema", ["", "Run", "a-b", 'a"b', "pg_run", "a" * 64, "1a"])
def test_a_schema_that_needs_quoting_is_refused(schema):
    with pytest.raises(ConfigError, match="schema"):
        split_schema(f"postgresql://h/d?schema={schema}")


def test_without_psycopg_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if "store.postgres" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(atroposlib.api.store, "postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'atroposlib\[postgres\]'"):
        open_store("postgresql://127.0.0.1:1/x")


def test_a_server_that_is_not_there_is_named_without_the_password():
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError) as refused:
        open_store("postgresql://u:sekret@127.0.0.1:1/x")
    assert "sekret" not in str(refused.value) and "127.0.0.1" in str(refused.value)


def test_a_url_that_cannot_be_read_is_not_repeated():
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError) as refused:
        open_store("postgresql://u:sekret@h/x?nonsense=1")
    assert "sekret" not in str(refused.value)


def test_a_role_that_may_only_read_is_refused(postgres, url, replicas):
    replicas()._write(lambda c: c.execute("CREATE ROLE reader LOGIN"))
    replicas()._write(
        lambda c: c.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    )
    with pytest.raises(ConfigError, match="standby or read-only"):
        PostgresStore(url.replace("atropos@", "reader@"))


@pytest.mark.slow
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


def test_tables_of_another_release_are_refused(url, replicas):
    replicas()._write(lambda c: c.execute("UPDATE meta SET layout = 99"))
    with pytest.raises(ConfigError, match="layout 99"):
        PostgresStore(url)


def test_tables_of_layout_2_are_refused_under_their_old_names(url, replicas):
    def as_before(connection):
        connection.execute("ALTER TABLE meta RENAME TO head")
        connection.execute("UPDATE head SET layout = 2")

    replicas()._write(as_before)
    with pytest.raises(ConfigError, match="layout 2, this release knows 3"):
        PostgresStore(url)


def test_commits_are_durable_whatever_the_database_is_set_to(url, replicas):
    set_off = "ALTER DATABASE postgres SET synchronous_commit = {}"
    replicas()._write(lambda c: c.execute(set_off.format("off")))
    try:
        for way_in in (replicas()._write, replicas()._read):
            assert way_in(lambda c: c.execute("SHOW synchronous_commit")) == [("on",)]
    finally:
        replicas()._write(lambda c: c.execute(set_off.format("on")))


def test_payloads_are_not_compressed_again(replicas):
    asked = "SELECT attstorage FROM pg_attribute WHERE attrelid = 'payload'::regclass AND attname = 'body'"
    assert replicas()._read(lambda c: c.execute(asked)) == [("e",)]


def test_keys_may_hold_what_text_may_not(replicas):
    store = replicas()
    odd = ["a\0b", "a\\0b", "a\\\0", "\\\\", "%s ? $1", "ü\u2028"]
    stored = put(store, *(group(key, key=key) for key in odd))
    assert [one.duplicate for one in stored] == [False] * len(odd)
    again = put(store, *(group(key, key=key) for key in odd))
    assert [(one.gid, one.duplicate) for one in again] == [(one.gid, True) for one in stored]


# --- the line to the server -----------------------------------------------------------


def test_sessions_that_the_server_ended_are_replaced_without_an_error(postgres, replicas):
    store = replicas()
    generation = register(store)
    put(store, group("a", 8))
    postgres.drop_connections()
    put(store, group("b", 8), revision=store.stats().revision)
    postgres.drop_connections()
    first = claim(store, generation)
    postgres.drop_connections()
    assert store.read(first.gids)[0].data == b"a"
    postgres.drop_connections()
    assert ack(store, first, commit=True)


@pytest.mark.slow
def test_a_server_that_stays_away_is_an_error_and_its_return_is_noticed():
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


def put_or_none(store, one):
    try:
        return put(store, one)
    except StoreError:
        return None


@pytest.fixture
def line(postgres):
    line = Line(postgres.folder)
    yield line
    line.close()


def test_a_commit_whose_answer_got_lost_is_looked_up_and_answered_once(line, url, replicas):
    store = replicas(line.url(split_schema(url)[1]))
    revision = store.stats().revision
    line.break_at_commit("after")
    [stored] = put(store, group("a"), revision=revision)
    assert (stored.gid, stored.duplicate, held(store)) == (1, False, 1)


def test_a_commit_that_never_arrived_is_an_error_and_nothing_happened(line, url, replicas):
    store = replicas(line.url(split_schema(url)[1]))
    revision = store.stats().revision
    line.break_at_commit("before")
    with pytest.raises(StoreError):
        put(store, group("a"), revision=revision)
    assert held(store) == 0
    put(store, group("b"))
    assert held(store) == 1


def test_a_lost_commit_of_many_is_right_for_each_of_them(line, url, replicas):
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


# --- several replicas of the API ------------------------------------------------------


def test_what_one_replica_does_the_other_sees(replicas):
    one, other = replicas(), replicas()
    assert one.shared
    generation = register(one)
    put(other, group("a", 8), group("b", 8))
    first = claim(one, generation, claim_id="x")
    second = claim(other, generation, claim_id="y")
    assert (first.gids, second.gids) == ((1,), (2,))
    assert claim(other, generation, claim_id="x").no == first.no
    assert other.read(first.gids)[0].data == b"a"
    assert ack(one, first) and not ack(other, first)
    one.reset()
    assert other.load().body is None and held(other) == 0
    with pytest.raises(StaleGeneration):
        ack(other, second)


def test_who_saves_a_run_that_another_replica_changed_is_told(replicas):
    one, other = replicas(), replicas()
    seen = other.load()
    one.save(b"new", one.load().revision)
    with pytest.raises(RunChanged):
        other.save(b"late", seen.revision)
    with pytest.raises(RunChanged):
        put(other, group("a"), revision=seen.revision)
    assert other.load().body == b"new"


def test_replicas_never_claim_the_same_batch_and_lose_no_group(replicas):
    stores = [replicas(), replicas()]
    generation = register(stores[0])
    revision, names = stores[0].stats().revision, count()

    def work(i):
        store = stores[i % 2]
        store.put([group(f"{i}", 4, key=f"{i}")], revision, in_order)
        got = claim(store, generation, size=8, claim_id=f"c{next(names)}")
        return got if isinstance(got, LeasedBatch) and ack(store, got, commit=True) else None

    with ThreadPoolExecutor(8) as pool:
        batches = [got for got in pool.map(work, range(60)) if got]
    numbers = Counter(batch.no for batch in batches)
    gids = Counter(gid for batch in batches for gid in batch.gids)
    assert set(numbers.values()) == {1} and set(gids.values()) == {1}
    assert len(gids) + held(stores[1]) == 60


def test_runs_in_two_schemas_do_not_see_each_other(postgres, replicas):
    one, other = replicas(), replicas(postgres.fresh_url())
    put(one, group("a"))
    assert held(other) == 0
    assert [stored.gid for stored in put(other, group("b"))] == [1]


def test_replicas_that_open_at_the_same_time_make_the_tables_once(postgres):
    url = postgres.fresh_url()
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: PostgresStore(url), range(4)))
    assert [held(store) for store in stores] == [0] * 4
    for store in stores:
        store.close()
