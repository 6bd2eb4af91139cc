"""In-memory store, for tests and for runs that need no restart.

It runs the SQL of the durable stores on an in-memory SQLite database.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from atroposlib.api.store.sql.schema import SQLITE, tables
from atroposlib.api.store.sql.sql_store import DEFAULT_MAX_BYTES, Store
from atroposlib.api.store.sql.writer import Database, Writer
from atroposlib.api.store.sqlite.database import SqliteTransactions


class MemoryStore(Store):
    """See :class:`atroposlib.api.store.sql.sql_store.Store`; a single thread runs every method.

    ``writer`` makes its writer, for tests.
    """

    def __init__(
        self,
        max_bytes: int = DEFAULT_MAX_BYTES,
        writer: Callable[[Database], Writer] = Writer,
    ) -> None:
        connection = apsw.Connection(":memory:")
        connection.execute("PRAGMA page_size = 16384")
        for statement in tables(SQLITE):
            connection.execute(statement)
        made = writer(SqliteTransactions(connection))
        super().__init__(made, made.do, max_bytes)

    def close(self) -> None:
        self._writer.close()
