"""Rows of the index that filters let pass, read in bounded time from millions.

Up to ``FEW`` rows are gathered by the index that has the fewest, and sorted. More are
walked in their order until a page is full, and counts and samples read parts of the run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import apsw
import msgspec

from atroposlib.api.archive.filters import KIND, Order, Where
from atroposlib.wire.explore import Counted

FEW = 10_000
READ_S = 0.03  # time limit of a count, or of a sample, of more rows
SAMPLE = 20_000  # rows
BLOCK = 16  # groups that are read together
Row = tuple[Any, ...]


def row_kinds(reader: apsw.Connection) -> list[str]:
    """The values of ``KIND`` in the index, each found by a seek."""
    sql = f"SELECT MIN({KIND}) FROM rollout INDEXED BY rollout_kind WHERE {KIND} > ?"
    kinds = list[str]()
    while True:
        values = (kinds[-1] if kinds else "",)
        kind: Any = reader.execute(sql, values).get
        if kind is None:
            return kinds
        kinds.append(kind)


class ChosenRows:
    """The rows of a reading connection that pass ``found``."""

    def __init__(self, reader: apsw.Connection, found: Where) -> None:
        self._read: Callable[..., Any] = reader.execute
        self._found = found
        self._kinds: list[str] = []
        ways = [(f"rollout_{column}", sql, own) for column, sql, own in found.parts]
        if found.kinds:
            self._kinds = [kind for kind in row_kinds(reader) if found.has(kind)]
            kinds = msgspec.json.encode(self._kinds).decode()
            sql = f"{KIND} IN (SELECT value FROM json_each(?))"
            ways.append(("rollout_kind", sql, (kinds,)))
        ways = ways or [(_BY_GID, "1", ())]
        sizes = [self._size(*way) for way in ways]
        self._size_of_way = min(sizes)
        self._by, sql, values = ways[sizes.index(self._size_of_way)]
        self._few = self._size_of_way <= FEW
        self._alone = len(ways) == 1
        self._gathered = found.and_(sql, *values)

    def _size(self, index: str, sql: str, values: Row) -> int:
        few = f"SELECT 1 FROM rollout INDEXED BY {index} WHERE {sql} LIMIT {FEW + 1}"
        return int(self._read(f"SELECT COUNT(*) FROM ({few})", values).get)

    def page(self, columns: str, order: Order, after: str | None, limit: int) -> list[Row]:
        """The first rows after the key ``after``."""
        if not self._few and self._kinds and self._alone and order.column == "gid":
            return self._page_of_kinds(columns, order, after, limit)
        page = order.start(self._gathered if self._few else self._found, after)
        index = _BY_GID if order.column == "gid" else f"rollout_{order.column}"
        sql = f"SELECT {columns} FROM rollout INDEXED BY {self._by if self._few else index} "
        rows = self._read(f"{sql} {page.clause} {order.sql} LIMIT ?", (*page.values, limit))
        return list(rows)

    def _page_of_kinds(
        self, columns: str, order: Order, after: str | None, limit: int
    ) -> list[Row]:
        """Result of :meth:`page`, from the first rows of each kind."""
        page, keys = order.start(Where({}), after), list[Row]()
        for kind in self._kinds:
            sql = f"SELECT gid, row FROM rollout INDEXED BY rollout_kind {page.clause} "
            sql += f"AND {KIND} = ? {order.sql} LIMIT ?"
            keys += self._read(sql, (*page.values, kind, limit))
        keys = sorted(keys, reverse=order.descending)[:limit]
        sql = f"SELECT {columns} FROM json_each(?) AS one CROSS JOIN rollout "
        sql += "ON gid = one.value ->> 0 AND row = one.value ->> 1"
        return list(self._read(sql, (msgspec.json.encode(keys).decode(),)))

    def count(self) -> Counted:
        """Their number; of more than ``FEW`` a lower bound."""
        n = self._size_of_way
        if not self._alone and self._few:
            n = next(self._all("COUNT(*)"))[0]
        elif not self._alone:
            n = 0
            for (some,) in self._random_blocks("COUNT(*)"):
                n += some
                if n > FEW:
                    break
            else:
                return Counted(n, exact=self._complete)
        return Counted(min(n, FEW), exact=n <= FEW)

    def values(self, column: str) -> tuple[list[Any], bool]:
        """The column of all rows, or (False) of ``SAMPLE`` rows from all parts of the run."""
        if self._few:
            return [value for (value,) in self._all(column)], True
        sample: list[Any] = []
        for (value,) in self._random_blocks(column):
            sample.append(value)
            if len(sample) == SAMPLE:
                return sample, False
        return sample, self._complete

    def _all(self, what: str) -> Iterator[Row]:
        condition = self._gathered
        sql = f"SELECT {what} FROM rollout INDEXED BY {self._by} {condition.clause}"
        return iter(self._read(sql, condition.values))

    def _random_blocks(self, what: str) -> Iterator[Row]:
        """``what`` of block after block in a random order, for ``READ_S``."""
        self._complete, end = False, time.monotonic() + READ_S
        low, high = self._read(_ENDS).get
        block = self._found.and_("gid BETWEEN ? AND ?")
        sql = f"SELECT {what} FROM rollout INDEXED BY {_BY_GID} {block.clause}"
        starts = range(low, high + 1, BLOCK)
        for start in random.Random(0).sample(starts, len(starts)):
            if time.monotonic() > end:
                return
            yield from self._read(sql, (*self._found.values, start, start + BLOCK - 1))
        self._complete = True


_BY_GID = "sqlite_autoindex_rollout_1"
# In a single SELECT both would read the whole index.
_ENDS = "SELECT (SELECT MIN(gid) FROM rollout), (SELECT MAX(gid) FROM rollout)"
