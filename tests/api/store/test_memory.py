"""The in-memory store: compressed payloads, and the error after close."""

from __future__ import annotations

import pytest

from atroposlib.api.common.records import Media
from atroposlib.api.store.memory import MemoryStore
from atroposlib.errors import StoreError
from tests.api.store.store_talk import group, put


def test_plain_payloads_are_compressed_and_returned_unchanged():
    store = MemoryStore()
    gid = put(store, group("ab" * 5000))[0].gid
    [(body,)] = store._read(lambda c: c.execute("SELECT body FROM payload"))
    assert len(body) < 100
    assert store.read([gid])[0].data == b"ab" * 5000


def test_compressed_payloads_are_stored_as_they_are():
    store = MemoryStore()
    put(store, group(b"x" * 1000, media=Media.SAFETENSORS_ZSTD))
    assert store._read(lambda c: c.execute("SELECT body FROM payload")) == [(b"x" * 1000,)]


def test_a_closed_store_raises():
    store = MemoryStore()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.stats()
