"""Schema and tables on PostgreSQL: made once, and of this layout."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.api.store.postgres import PostgresStore, split_schema
from atroposlib.errors import ConfigError
from tests.api.store.postgres.postgres_pooler import running_pooler
from tests.api.store.store_talk import held


def test_tables_of_another_release_are_refused(url, replicas):
    replicas()._write(lambda c: c.execute("UPDATE meta SET layout = 99"))
    with pytest.raises(ConfigError, match="layout 99"):
        PostgresStore(url)


def test_tables_of_layout_2_are_refused_under_their_old_names(url, replicas):
    def as_before(connection):
        connection.execute("ALTER TABLE meta RENAME TO head")
        connection.execute("UPDATE head SET layout = 2")

    replicas()._write(as_before)
    with pytest.raises(ConfigError, match="layout 2, this release knows 5"):
        PostgresStore(url)


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
