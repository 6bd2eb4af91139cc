"""Connections of the PostgreSQL store: writer and readers.

PostgresDatabase  connection of the writer: lock of the run, COMMIT with a known outcome
PostgresReaders   read-only connections, a snapshot each
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

import psycopg

from atroposlib.api.store.postgres.connection import (
    FAULTS,
    READ_SILENCE_S,
    PostgresConnection,
    PostgresServer,
    Raw,
    postgres_fault,
)
from atroposlib.api.store.sql.schema import DamagedRow, Row
from atroposlib.errors import ConfigError, StoreError

T = TypeVar("T")

MAX_READERS = 4
READER_WAIT_S = 30.0  # limit for a free connection


class _Reader(PostgresConnection):
    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        try:
            return super().execute(sql, values)
        except psycopg.errors.DataCorrupted as cause:
            self.end()  # a failed transaction allows no further reads
            self.begin()
            raise DamagedRow(str(postgres_fault(cause))) from cause

    def begin(self) -> None:
        self.raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def end(self) -> None:
        self.raw.execute("ROLLBACK")


class PostgresReaders:
    """Pool of at most ``MAX_READERS`` read-only connections, opened on demand."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._idle: queue.LifoQueue[Raw | None] = queue.LifoQueue()
        for _ in range(MAX_READERS):
            self._idle.put(None)
        self._open = True

    def run(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run ``work`` on a snapshot."""
        try:
            return self._server.retry_while_away(lambda: self._attempt(work))
        except FAULTS as cause:
            raise postgres_fault(cause) from cause
        # the server changed by a failover; at the start it is a ConfigError
        except ConfigError as cause:
            raise StoreError(str(cause)) from cause

    def _attempt(self, work: Callable[[PostgresConnection], T]) -> T:
        if not self._open:
            raise StoreError("the store is closed")
        try:
            raw = self._idle.get(timeout=READER_WAIT_S)
        except queue.Empty as cause:
            raise StoreError("all readers of the store are busy: try again") from cause
        try:
            if raw is None or raw.closed:
                raw = self._server.connect(READ_SILENCE_S)
            reader = _Reader(raw)
            reader.begin()
            try:
                return work(reader)
            finally:
                with suppress(psycopg.Error):
                    reader.end()
        finally:
            usable = raw is not None and not raw.closed
            self._idle.put(raw if usable else None)

    def close(self) -> None:
        """Wait for active readers, and disconnect. Idempotent."""
        if self._open:
            self._open = False
            for _ in range(MAX_READERS):
                with suppress(queue.Empty):
                    raw = self._idle.get(timeout=READER_WAIT_S)
                    if raw is not None:
                        raw.close()


# --- the writer's -------------------------------------------------------------------


class PostgresDatabase:
    """See :class:`atroposlib.api.store.sql.writer.Database`.

    The outcome of a COMMIT whose response was lost is looked up by the id of its transaction, if
    the server has not crashed since: a crash loses ids that no durable record names, and the
    server gives these ids to new transactions. It also empties the unlogged table ``uncrashed``, of
    which a transaction notes the row. After a crash the outcome is unknown, an error.
    """

    faults: tuple[type[Exception], ...] = (*FAULTS, StoreError)
    commit_is_certain = False
    fault = staticmethod(postgres_fault)

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._raw: Raw | None = None
        self._transaction: tuple[str, str] | None = None  # row of ``uncrashed``, id

    @property
    def _live(self) -> Raw:
        if self._raw is None:
            raise StoreError("there is no connection to PostgreSQL")
        return self._raw

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return PostgresConnection(self._live).execute(sql, values)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        PostgresConnection(self._live).execute_many(sql, rows)

    def begin(self) -> None:
        """Wait for the server if it is unreachable, and for the lock of the run.

        No statement has written yet, so a dead connection is replaced.
        """
        try:
            self._server.retry_while_away(self._begin)
        except ConfigError as cause:  # the server changed by a failover
            raise StoreError(str(cause)) from cause

    def _begin(self) -> None:
        self._require_connection().execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        [(_, epoch_s, uncrashed, number)] = self.execute(_LOCK, (self._server.lock,))
        self._server.record_time(epoch_s)
        if uncrashed is None:  # the first transaction since a crash
            uncrashed = uuid4().hex
            self.execute("INSERT INTO uncrashed VALUES (?)", (uncrashed,))
        self._transaction = (uncrashed, number)

    def _require_connection(self) -> Raw:
        if self._raw is None or self._raw.closed:
            self._raw = self._server.connect()
        return self._raw

    def commit(self) -> None:
        try:
            done = self._live.execute("COMMIT").statusmessage
        except psycopg.OperationalError:
            if not self._was_committed():
                raise
        else:
            if done != "COMMIT":  # the server rolls back a failed transaction without an error
                raise StoreError("PostgreSQL rolled the transaction back")

    def _was_committed(self) -> bool:
        """Whether a transaction with a lost response is durable; False if unknown."""
        if self._transaction is None:
            return False
        self._hang_up()
        uncrashed, number = self._transaction
        try:
            return self._server.retry_while_away(lambda: self._look_up(uncrashed, number))
        except (*FAULTS, ConfigError):
            return False

    def _look_up(self, uncrashed: str, number: str) -> bool:
        self._require_connection()
        [(now, status)] = self.execute(_OUTCOME, (number,))
        if now != uncrashed:
            return False
        if status == "in progress":  # its session has not noticed the lost connection yet
            raise psycopg.OperationalError("the outcome of a transaction is not known yet")
        return bool(status == "committed")

    def rollback(self) -> None:
        raw = self._raw
        if raw is None:
            return
        if raw.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                raw.execute("ROLLBACK")
        if raw.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
            self._hang_up()

    def close(self) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        if self._raw is not None:
            with suppress(psycopg.Error):
                self._raw.close()
            self._raw = None


_ROW = "(SELECT min(id) FROM uncrashed)"
# The clock is read after the wait for the lock, the row possibly before: then there are two rows,
# and an outcome is unknown where the noted row is not the least.
_LOCK = (
    "SELECT pg_advisory_xact_lock(?)::text, extract(epoch FROM clock_timestamp())::float8, "
    f"{_ROW}, pg_current_xact_id()::text"
)
_OUTCOME = f"SELECT {_ROW}, pg_xact_status(CAST(? AS text)::xid8)"
