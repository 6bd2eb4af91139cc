"""Schema and tables on PostgreSQL: made once, and of this layout."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from atroposlib.api.codec.json import stored_form
from atroposlib.api.store.postgres import PostgresStore, split_schema
from atroposlib.errors import ConfigError
from atroposlib.wire.binary import pack_group
from tests.api.store.postgres.postgres_pooler import running_pooler
from tests.api.store.store_talk import ack, claim, group, held, put, register


def test_tables_of_another_release_are_refused(url, replicas):
    replicas().do(lambda c: c.execute("UPDATE meta SET layout = 99"))
    with pytest.raises(ConfigError, match="layout 99"):
        PostgresStore(url)


def test_tables_of_layout_2_are_refused_under_their_old_names(url, replicas):
    def as_before(connection):
        connection.execute("ALTER TABLE meta RENAME TO head")
        connection.execute("UPDATE head SET layout = 2")

    replicas().do(as_before)
    with pytest.raises(ConfigError, match="layout 2, this release knows 5"):
        PostgresStore(url)


def test_tables_of_the_release_before_are_converted(url, replicas):
    text = json.dumps({"tokens": [[7, 8]], "masks": [[-100, 8]], "scores": [0.5]}).encode()
    binary = pack_group(json.loads(text))
    store = replicas(archive_bytes=2**20)
    put(store, group(text, 1, key="a"), group(text, 1, key="b"), group(binary, 1, key="c"))
    batch = claim(store, register(store), 1)
    ack(store, batch, commit=True)  # group 1 is in the archive

    def as_before(connection):
        for table in ("groups", "archived"):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN media TEXT DEFAULT 'json'")
        connection.execute("UPDATE groups SET media = 'safetensors' WHERE key = 'c'")
        connection.execute("UPDATE meta SET layout = 4")

    store.do(as_before)
    with pytest.raises(ConfigError, match="layout 4, this release knows 5"):
        PostgresStore(url)
    with closing(PostgresStore(url, convert=stored_form)) as converted:
        payloads = converted.read([1, 2, 3], retired=True)
        assert payloads == [stored_form(text), stored_form(text), binary]
        assert converted.stats().retained_bytes == len(payloads[1]) + len(binary)
        assert converted.stats().disk_bytes == sum(map(len, payloads))
        repeat = group(stored_form(text), 1, key="a")
        assert put(converted, repeat)[0].duplicate
        ack(converted, claim(converted, register(converted), 1), commit=True)
        assert converted.read([2], retired=True) == [payloads[1]]


def test_a_pooler_in_transaction_mode_is_refused_and_one_in_session_mode_accepted(
    postgres, url
):
    schema = split_schema(url)[1]
    with running_pooler(postgres.folder, shares_sessions=False) as pooler:
        PostgresStore(pooler.url(schema)).close()
    with running_pooler(postgres.folder, shares_sessions=True) as pooler:
        with pytest.raises(ConfigError, match="pooler in transaction mode"):
            PostgresStore(pooler.url(schema))


def test_replicas_that_open_concurrently_create_the_tables_once(postgres):
    url = postgres.fresh_url()
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: PostgresStore(url), range(4)))
    assert [held(store) for store in stores] == [0] * 4
    for store in stores:
        store.close()
