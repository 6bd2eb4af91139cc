"""Stores over one schema of a PostgreSQL server."""

from __future__ import annotations

import pytest

from atroposlib.api.store.postgres import PostgresStore


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
