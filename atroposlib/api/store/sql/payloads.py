"""Payloads of a store, read by the ids of their groups and checked against their digests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

from atroposlib.api.common.records import digest_of
from atroposlib.api.store.sql.schema import MAX_INT64, Connection, DamagedRow, Row
from atroposlib.api.store.sql.writer import Read, Work
from atroposlib.errors import CorruptPayload

T = TypeVar("T")


class StoredPayloads:
    """The payloads of a database.

    Args:
        read: runs an operation on a single snapshot of the tables, without waiting for a writer.
    """

    def __init__(self, read: Read) -> None:
        self._read = read

    def ask(self, query: Work[T]) -> T:
        """Run an operation that only reads, on a snapshot, without waiting for a writer."""
        return self._read(query)

    _stored: tuple[str, type] = ("body", bytes)  # columns of a payload, and their type
    _archived: str | None = None  # SQL of digest and these columns of a retired group

    def _payloads(self, rows: Iterable[Row]) -> Iterable[bytes]:
        """The payloads of rows of digest and the columns of a payload, or wrong bytes if they
        are damaged. Called outside of any transaction."""
        return (row[1] for row in rows)

    def read(self, gids: Sequence[int], retired: bool = False) -> list[bytes]:
        """Payloads in the order of ``gids``, byte for byte as put; with ``retired`` also
        payloads that an archive keeps.

        Raises:
            CorruptPayload: bytes do not match their digest, or are missing; ``gids`` of the
                error names all damaged groups.
        """
        payloads: dict[int, bytes] = {}
        rows: dict[int, Row] = {}
        while absent := [gid for gid in gids if gid not in payloads]:
            before, rows = rows, self.ask(partial(self._rows, gids=absent, retired=retired))
            if rows.items() <= before.items():  # otherwise their payloads have moved since
                raise CorruptPayload(absent)
            for (gid, row), data in zip(rows.items(), self._payloads(rows.values())):
                if digest_of(data) == row[0]:
                    payloads[gid] = data
        return [payloads[gid] for gid in gids]

    def _rows(
        self, connection: Connection, gids: Sequence[int], retired: bool = False
    ) -> dict[int, Row]:
        """Digest and stored payload by gid, without missing and unreadable groups."""
        columns, kind = self._stored
        sql = f"SELECT digest, {columns} FROM payload JOIN groups USING (gid) "
        sql += "WHERE gid = ? AND state NOT IN ('committed', 'dropped')"
        by_gid = {}
        for gid in gids:
            try:
                rows = connection.execute(sql, (gid,)) if 0 < gid <= MAX_INT64 else []
                if not rows and retired and self._archived and 0 < gid <= MAX_INT64:
                    rows = connection.execute(self._archived, (gid,))
            except DamagedRow:
                continue
            for row in rows:
                if all(isinstance(value, kind) for value in row[1:]):
                    by_gid[gid] = row
        return by_gid
