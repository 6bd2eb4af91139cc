"""The stores that the contract suite runs on. A new one is a line in ``STORES``.

A factory is given the test's temporary directory and ``request.getfixturevalue``, and
returns a function that opens the store: empty the first time, resumed the next if
``RESUMES`` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from atroposlib.api.store import DEFAULT_MAX_BYTES, Store, open_store
from atroposlib.api.store.memory import MemoryStore
from atroposlib.api.store.sqlite import SqliteStore

Open = Callable[..., Store]
Factory = Callable[[Path, Callable[[str], Any]], Open]


def memory(directory: Path, fixture: Callable[[str], Any]) -> Open:
    return lambda max_bytes=DEFAULT_MAX_BYTES: MemoryStore(max_bytes)


def sqlite(directory: Path, fixture: Callable[[str], Any]) -> Open:
    return lambda max_bytes=DEFAULT_MAX_BYTES: SqliteStore(directory / "data", max_bytes)


def postgres(directory: Path, fixture: Callable[[str], Any]) -> Open:
    url = fixture("postgres").fresh_url()
    return lambda max_bytes=DEFAULT_MAX_BYTES: open_store(url, max_bytes=max_bytes)


STORES: dict[str, Factory] = {"memory": memory, "sqlite": sqlite, "postgres": postgres}
RESUMES = ("sqlite", "postgres")


class Opened:
    """Opens stores for one test, one after another, and closes them."""

    def __init__(self, name: str, open_one: Open) -> None:
        self.resumes = name in RESUMES
        self._open = open_one
        self._stores: list[Store] = []

    def __call__(self, **settings: Any) -> Store:
        self._stores.append(self._open(**settings))
        return self._stores[-1]

    def close(self) -> None:
        for store in self._stores:
            store.close()
