"""SQLite for statements that a model wrote: few kinds of statement, bounded in time and size."""

from collections.abc import Iterable
from typing import Any

import apsw

MAX_STEPS, STEP, MAX_ROWS = 500, 1000, 1000  # 500,000 instructions of SQLite
LIMITS = {
    apsw.SQLITE_LIMIT_LENGTH: 4000,  # limit of a text, and so of the contents of a row
    apsw.SQLITE_LIMIT_SQL_LENGTH: 4000,
    apsw.SQLITE_LIMIT_EXPR_DEPTH: 50,
    apsw.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    apsw.SQLITE_LIMIT_ATTACHED: 0,
    apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
}
READS = (apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE)
WRITES = (apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE)


def bound_database(
    database: apsw.Connection, allowed: Iterable[int] = READS
) -> apsw.Connection:
    """The database, from now on with the limits, and for the allowed actions only."""
    for limit, value in LIMITS.items():
        database.limit(limit, value)
    kinds = set(allowed)
    database.authorizer = lambda what, *_: (
        apsw.SQLITE_OK if what in kinds else apsw.SQLITE_DENY
    )
    return database


def rows_of(database: apsw.Connection, query: str) -> list[tuple[Any, ...]]:
    """At most MAX_ROWS rows of a query; raises apsw.Error: refused, wrong, or too long."""
    left = iter(range(MAX_STEPS))
    database.set_progress_handler(lambda: next(left, None) is None, STEP)
    rows = [row for row, _ in zip(database.execute(query), range(MAX_ROWS))]
    return [tuple(round(x, 6) if isinstance(x, float) else x for x in row) for row in rows]
