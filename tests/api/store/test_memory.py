"""The in-memory store: the error after close."""

from __future__ import annotations

import pytest

from atroposlib.api.store.memory import MemoryStore
from atroposlib.errors import StoreError


def test_a_closed_store_raises():
    store = MemoryStore()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.stats()
