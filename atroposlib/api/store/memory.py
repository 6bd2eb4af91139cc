"""In-memory store, for tests and for runs that need no restart.

It runs the SQL of the other stores on an in-memory SQLite database. Uncompressed payloads
are compressed: a queued token takes about 13 bytes instead of 33.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import apsw
import zstandard

from atroposlib.api.common.records import Media, NewGroup
from atroposlib.api.store.sql.schema import MEDIA, SQLITE, Row, tables
from atroposlib.api.store.sql.sql_store import DEFAULT_MAX_BYTES, Store
from atroposlib.api.store.sql.writer import Database, Writer
from atroposlib.api.store.sqlite.database import SqliteTransactions

LEVEL = 1  # higher levels take twice the time and save nothing on token ids
PLAIN = frozenset({Media.JSON, Media.SAFETENSORS})


class MemoryStore(Store):
    """See :class:`atroposlib.api.store.sql.sql_store.Store`; one thread runs every method.

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

    def _body(self, group: NewGroup) -> bytes:
        if group.media not in PLAIN:
            return group.payload
        return zstandard.ZstdCompressor(level=LEVEL).compress(group.payload)

    def _payloads(self, rows: Iterable[Row]) -> Iterable[bytes]:
        for _, media, body in rows:
            plain = MEDIA[media] in PLAIN
            yield zstandard.ZstdDecompressor().decompress(body) if plain else body

    def close(self) -> None:
        self._writer.close()
