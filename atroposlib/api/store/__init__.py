"""Stores by name. A new one is a file here, a line in ``STORES`` and the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atroposlib.api.store.base import Store
from atroposlib.api.store.memory import MemoryStore
from atroposlib.errors import ConfigError

__all__ = ["STORES", "Store", "open_store"]


def _open_memory(data_dir: Path | None) -> Store:
    return MemoryStore()


def _open_sqlite(data_dir: Path | None) -> Store:
    from atroposlib.api.store.sqlite import SqliteStore  # loads apsw only where it is used

    if data_dir is None:
        raise ConfigError("the sqlite store needs a data directory (--data-dir)")
    return SqliteStore(data_dir)


STORES: dict[str, Callable[[Path | None], Store]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
}


def open_store(name: str, data_dir: Path | None = None) -> Store:
    """Open the store called ``name``.

    Raises:
        ConfigError: there is no such store, or it lacks what it needs.
        StoreLocked: another process owns ``data_dir``.
    """
    if name not in STORES:
        raise ConfigError(
            f"no store is called {name!r}; there are {', '.join(sorted(STORES))}"
        )
    return STORES[name](data_dir)
