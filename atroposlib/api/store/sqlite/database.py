"""SQLite connections: a writer, and a pool of readers."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import apsw

from atroposlib.api.store.sql.schema import DamagedRow, Row
from atroposlib.api.store.sql.writer import Work
from atroposlib.api.store.sqlite.opening import end_use
from atroposlib.api.store.sqlite.payload_log import PayloadLog
from atroposlib.errors import StoreError, StoreFull

T = TypeVar("T")

PAGE_BYTES = 4096  # a commit changes some bytes in about ten pages, and writes whole pages
CHECKPOINT_PAGES = 4000  # a log of this many pages is copied into the file
# Beyond, readers are paused so that the log can restart.
MAX_LOG_PAGES = 3 * CHECKPOINT_PAGES
MAX_READERS = 4
BUSY_MS = 10_000  # longest wait of a reader for a checkpoint
# Exceptions of SQLite, of the payload log, and of the binding for values that SQLite cannot
# hold.
FAULTS = (apsw.Error, OSError, OverflowError, UnicodeEncodeError)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class SqliteConnection:
    """See :class:`atroposlib.api.store.sql.schema.Connection`."""

    def __init__(self, raw: apsw.Connection) -> None:
        self.raw = raw

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        try:
            return list(self.raw.execute(sql, tuple(values)))
        except apsw.CorruptError as cause:
            raise DamagedRow(f"SQLite: {cause}") from cause

    def execute_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        self.raw.executemany(sql, rows)


def sqlite_fault(cause: Exception) -> StoreError:
    if isinstance(cause, StoreError):
        return cause
    full = isinstance(cause, apsw.FullError) or getattr(cause, "errno", None) in NO_SPACE
    kind = StoreFull if full else StoreError
    error = kind(f"{'payload log' if isinstance(cause, OSError) else 'SQLite'}: {cause}")
    error.__cause__ = cause
    return error


def open_database(
    path: Path, vfs: str | None, synchronous: str, read_only: bool
) -> apsw.Connection:
    """A connection with the settings that durability requires."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else _READ_WRITE
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    connection.set_busy_timeout(BUSY_MS)
    settings = [
        f"page_size = {PAGE_BYTES}",
        "journal_mode = WAL",
        f"synchronous = {synchronous}",  # NORMAL loses acknowledged groups in a power cut
        "temp_store = MEMORY",  # otherwise savepoints write to a file
    ]
    for setting in ["cache_size = -2000"] + ([] if read_only else settings):
        connection.execute(f"PRAGMA {setting}").fetchall()
    return connection


_READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


# --- readers ------------------------------------------------------------------------


class SqliteReaders:
    """Pool of at most ``MAX_READERS`` read-only connections, opened on demand."""

    def __init__(self, open_one: Callable[[], apsw.Connection]) -> None:
        self._open_one = open_one
        self._idle: queue.LifoQueue[apsw.Connection | None] = queue.LifoQueue()
        for _ in range(MAX_READERS):
            self._idle.put(None)
        self._open = True
        self._closing = threading.Lock()

    def run(self, work: Work[T]) -> T:
        """Run ``work`` in a read transaction, which reads a snapshot."""
        connection = self._take()
        try:
            if connection is None:
                connection = self._open_one()
            connection.execute("BEGIN")
            return work(SqliteConnection(connection))
        except FAULTS as cause:
            raise sqlite_fault(cause) from cause
        finally:
            if connection is not None:
                with suppress(apsw.Error):  # the rollback after a damaged row reports it again
                    connection.execute("ROLLBACK")
            self._idle.put(connection)

    def _take(self) -> apsw.Connection | None:
        if not self._open:
            raise StoreError("the store is closed")
        try:
            return self._idle.get(timeout=BUSY_MS / 1000)
        except queue.Empty as cause:
            raise StoreError("all readers of the store are busy: try again") from cause

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block all readers inside the context."""
        taken = []
        try:
            for _ in range(MAX_READERS):
                taken.append(self._take())
            yield
        finally:
            for connection in taken:
                self._idle.put(connection)

    def close(self) -> None:
        """Wait for active readers, and close all. Idempotent."""
        with self._closing:
            if self._open:
                self._open = False
                for _ in range(MAX_READERS):
                    connection = self._idle.get(timeout=BUSY_MS / 1000)
                    if connection is not None:
                        connection.close(True)


# --- the writer's -------------------------------------------------------------------


class SqliteTransactions(SqliteConnection):
    """See :class:`atroposlib.api.store.sql.writer.Database`; for a database in memory."""

    faults: tuple[type[Exception], ...] = (*FAULTS, DamagedRow)
    commit_is_certain = True
    fault = staticmethod(sqlite_fault)

    def begin(self) -> None:
        self.raw.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.raw.execute("COMMIT")

    def rollback(self) -> None:
        if self.raw.in_transaction:
            with suppress(apsw.Error):
                self.raw.execute("ROLLBACK")

    def close(self) -> None:
        self.raw.close()


class SqliteDatabase(SqliteTransactions):
    """The database of a data directory, with its payload log."""

    def __init__(self, raw: apsw.Connection, readers: SqliteReaders, log: PayloadLog) -> None:
        super().__init__(raw)
        self._readers, self._log = readers, log
        self._log_pages = 0
        raw.set_wal_hook(self._after_commit)

    def _after_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def commit(self) -> None:
        self._log.before_commit(self)  # the fsync of the payloads: their rows come after it
        super().commit()  # the fsync of the rows; the callers are answered after it
        self._log.after_commit()
        if self._log_pages >= CHECKPOINT_PAGES:
            with suppress(apsw.Error):  # on a full disk the log stays usable
                self._checkpoint()

    def _checkpoint(self) -> None:
        if self._log_pages < MAX_LOG_PAGES:
            self.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            return
        with suppress(StoreError), self._readers.exclusive():
            self.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    def rollback(self) -> None:
        self._log.rolled_back()
        super().rollback()

    def close(self) -> None:
        with suppress(apsw.Error, OSError):  # a failing disk must not keep the lock
            self._log.close()
            end_use(self.raw)
            super().close()
