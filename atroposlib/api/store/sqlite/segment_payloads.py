"""Payloads of a data directory, which a run may use meanwhile: reading takes no lock."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from atroposlib.api.store.sql.payloads import StoredPayloads
from atroposlib.api.store.sql.schema import Row
from atroposlib.api.store.sqlite.database import SqliteReaders, open_database
from atroposlib.api.store.sqlite.payload_log import SEGMENT_BYTES, PayloadLog
from atroposlib.api.store.sqlite.segment_files import SegmentFiles


class SegmentPayloads(StoredPayloads):
    """The payloads whose places in the segments the rows of a database name."""

    _log: PayloadLog
    _stored = ("segment, start, payload.n_bytes", int)
    _archived = "SELECT digest, segment, start, n_bytes FROM archived WHERE gid = ?"

    def _payloads(self, rows: Iterable[Row]) -> Iterable[bytes]:
        for no, same in groupby((row[1:] for row in rows), key=itemgetter(0)):
            yield from self._log.read(no, [(start, n_bytes) for _, start, n_bytes in same])


class OpenPayloads(SegmentPayloads):
    """The payloads of the data directory of ``database``, opened for reading."""

    def __init__(self, database: Path) -> None:
        self._readers = SqliteReaders(
            lambda: open_database(database, None, "FULL", read_only=True)
        )
        super().__init__(self._readers.run)
        self._log = PayloadLog(SegmentFiles(database.parent), lambda: 0, SEGMENT_BYTES)

    def close(self) -> None:
        self._readers.close()
