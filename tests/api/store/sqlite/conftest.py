"""A store on a disk of its test."""

from __future__ import annotations

import pytest

from atroposlib.api.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path)
    yield store
    store.close()
