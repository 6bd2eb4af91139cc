"""PostgreSQL store: server settings, lost connections and concurrent replicas."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

import atroposlib.api.store
from atroposlib.api.common.records import LeasedBatch
from atroposlib.api.store import open_store
from atroposlib.api.store.postgres import split_schema
from atroposlib.api.store.sql.run import LoadRun, SaveRun, reset_run
from atroposlib.errors import ConfigError, RunChanged, StaleGeneration
from tests.api.store.store_talk import ack, claim, group, held, in_order, put, register

# --- accepted and rejected URLs -------------------------------------------------------


def test_the_schema_is_parsed_from_the_url():
    assert split_schema("postgresql://h/d") == ("postgresql://h/d", "atropos")
    url = "postgresql://u:p%40@h1,h2:5/d?sslmode=require&schema=run_2&connect_timeout=3"
    rest = "postgresql://u:p%40@h1,h2:5/d?sslmode=require&connect_timeout=3"
    assert split_schema(url) == (rest, "run_2")


@pytest.mark.parametrize("schema", ["", "Run", "a-b", 'a"b', "pg_run", "a" * 64, "1a"])
def test_a_schema_that_needs_quoting_is_refused(schema):
    with pytest.raises(ConfigError, match="schema"):
        split_schema(f"postgresql://h/d?schema={schema}")


def test_the_error_without_psycopg_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if "store.postgres" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(atroposlib.api.store, "postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'atropos-rl\[postgres\]'"):
        open_store("postgresql://127.0.0.1:1/x")


def test_commits_are_durable_regardless_of_the_database_settings(url, replicas):
    set_off = "ALTER DATABASE postgres SET synchronous_commit = {}"
    replicas().do(lambda c: c.execute(set_off.format("off")))
    try:
        for way_in in (replicas().do, replicas().ask):
            assert way_in(lambda c: c.execute("SHOW synchronous_commit")) == [("on",)]
    finally:
        replicas().do(lambda c: c.execute(set_off.format("on")))


def test_payloads_are_not_compressed_again(replicas):
    asked = "SELECT attstorage FROM pg_attribute WHERE attrelid = 'payload'::regclass AND attname = 'body'"
    assert replicas().ask(lambda c: c.execute(asked)) == [("e",)]


# --- the line to the server -----------------------------------------------------------


# --- several replicas of the API ------------------------------------------------------


def test_changes_of_one_replica_are_visible_to_the_other(replicas):
    one, other = replicas(), replicas()
    assert one.shared
    generation = register(one)
    put(other, group("a", 8), group("b", 8))
    first = claim(one, generation, claim_id="x")
    second = claim(other, generation, claim_id="y")
    assert (first.gids, second.gids) == ((1,), (2,))
    assert claim(other, generation, claim_id="x").no == first.no
    assert other.read(first.gids)[0] == b"a"
    assert ack(one, first) and not ack(other, first)
    one.do(reset_run)
    assert other.ask(LoadRun()).body is None and held(other) == 0
    with pytest.raises(StaleGeneration):
        ack(other, second)


def test_saving_a_run_that_another_replica_changed_raises_a_conflict(replicas):
    one, other = replicas(), replicas()
    seen = other.ask(LoadRun())
    one.do(SaveRun(b"new", one.ask(LoadRun()).revision))
    with pytest.raises(RunChanged):
        other.do(SaveRun(b"late", seen.revision))
    with pytest.raises(RunChanged):
        put(other, group("a"), revision=seen.revision)
    assert other.ask(LoadRun()).body == b"new"


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


def test_runs_in_two_schemas_are_isolated(postgres, replicas):
    one, other = replicas(), replicas(postgres.fresh_url())
    put(one, group("a"))
    assert held(other) == 0
    assert [stored.gid for stored in put(other, group("b"))] == [1]
