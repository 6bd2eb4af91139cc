"""One PostgreSQL connection as the queries see it. Needs psycopg 3."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg

from atroposlib.api.store.sql.schema import Row
from atroposlib.errors import StoreError, StoreFull

Raw = psycopg.Connection[Row]

# What psycopg raises, and what text raises that no database can hold.
FAULTS = (psycopg.Error, UnicodeEncodeError)


def fault(cause: Exception) -> StoreError:
    if isinstance(cause, StoreError):
        return cause
    kind = StoreFull if isinstance(cause, psycopg.errors.DiskFull) else StoreError
    said = str(cause).strip().split("\n")[0]  # further lines may quote values
    error = kind(f"PostgreSQL: {said or type(cause).__name__}")
    error.__cause__ = cause
    return error


class PostgresConnection:
    """See :class:`atroposlib.api.store.sql.schema.Connection`."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        with self.raw.cursor(binary=True) as cursor:  # half the bytes of hexadecimal payloads
            cursor.execute(_spelled(sql), [_outward(value) for value in values])
            if cursor.description is None:
                return []
            return [_inward(row) for row in cursor.fetchall()]

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_spelled(sql), [[_outward(v) for v in row] for row in rows])


@lru_cache(maxsize=1024)
def _spelled(sql: str) -> bytes:
    return sql.replace("%", "%%").replace("?", "%s").encode()


def _outward(value: Any) -> Any:
    """PostgreSQL's text holds no NUL, which a key of a client may."""
    if isinstance(value, str) and ("\0" in value or "\\" in value):
        return value.replace("\\", "\\\\").replace("\0", "\\0")
    return value


def _inward(row: Row) -> Row:
    if any(isinstance(value, str) and "\\" in value for value in row):
        return tuple(_unescaped(v) if isinstance(v, str) else v for v in row)
    return row


def _unescaped(text: str) -> str:
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))
