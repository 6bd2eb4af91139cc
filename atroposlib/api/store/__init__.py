"""Registry of stores by name. A new store is a module and a line in ``STORES``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atroposlib.api.store.sql.sql_store import DEFAULT_MAX_BYTES, Store
from atroposlib.errors import ConfigError

__all__ = ["DEFAULT_MAX_BYTES", "STORES", "Store", "open_store"]

Opener = Callable[[str, Path | None, int, int], Store]


# Each opener imports its database on the first use.
def _open_memory(name: str, data_dir: Path | None, max_bytes: int, archive: int) -> Store:
    from atroposlib.api.store.memory import MemoryStore

    return MemoryStore(max_bytes)


def _open_sqlite(name: str, data_dir: Path | None, max_bytes: int, archive: int) -> Store:
    from atroposlib.api.codec.json import stored_form
    from atroposlib.api.store.sqlite import SqliteStore

    if data_dir is None:
        raise ConfigError("the sqlite store needs a data directory (--data-dir)")
    return SqliteStore(data_dir, max_bytes, archive_bytes=archive, convert=stored_form)


def _open_postgres(name: str, data_dir: Path | None, max_bytes: int, archive: int) -> Store:
    from atroposlib.api.codec.json import stored_form
    from atroposlib.api.store.postgres import PostgresStore

    return PostgresStore(
        name, max_bytes, archive_bytes=archive, data_dir=data_dir, convert=stored_form
    )


STORES: dict[str, Opener] = {  # keys: name, or scheme of a URL
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "postgresql": _open_postgres,
}


def open_store(
    name: str,
    data_dir: Path | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    archive_bytes: int = 0,
) -> Store:
    """Open the store called ``name``: ``memory``, ``sqlite`` or ``postgresql://...``.

    ``archive_bytes`` of retired payloads are kept (sqlite, postgresql).

    Raises:
        ConfigError: unknown store, or a required setting is missing.
        StoreLocked: another process owns ``data_dir``.
    """
    scheme, colon, _ = name.partition("://")
    if scheme not in STORES or (scheme == "postgresql") != bool(colon):
        raise ConfigError(
            f"no store is called {scheme!r}; there are memory, sqlite and postgresql://..."
        )
    return STORES[scheme](name, data_dir, max_bytes, archive_bytes)
