"""The embedded store: one SQLite file that survives kill -9 and power cuts.

    caller threads --operation--> [waiting] --writer thread--> one transaction --> replies

The writer thread owns the only connection. It drains whatever waits into one
transaction, so many small puts share one fsync; each operation runs in a savepoint, so
one that is refused leaves its neighbours alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import apsw

from atroposlib.api.records import Batch, Chooser, NewGroup, Stored, StoreStats
from atroposlib.api.store import sqlite_queries as queries
from atroposlib.api.store.base import digest_of
from atroposlib.errors import AtroposError, ConfigError, StoreError, StoreFull, StoreLocked

T = TypeVar("T")

# Before 3.51.3 a reset of the write-ahead log can corrupt the file.
OLDEST_SQLITE = 3_051_003
DATABASE = "queue.sqlite"
MOST_OPERATIONS = 64  # per transaction: beyond, the first caller waits longer than an fsync
MOST_BYTES = 16 * 2**20  # per transaction: one checkpoint's worth
# Three checkpoints. Claims and acks must write too, and a failed checkpoint keeps its log:
# a disk filled to the brim by puts could never be drained again.
RESERVE_BYTES = 48 * 2**20


@dataclass
class _Operation:
    work: Callable[[apsw.Connection], Any]
    n_bytes: int
    reply: Future[Any] = field(default_factory=Future)


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


class SqliteStore:
    """See :class:`atroposlib.api.store.base.Store`. The directory must be on a local disk.

    Raises:
        StoreLocked: another process owns ``data_dir``.
        ConfigError: the SQLite library is too old to be trusted.
    """

    def __init__(
        self, data_dir: Path, free_bytes: Callable[[Path], int] = _free_bytes
    ) -> None:
        if apsw.SQLITE_VERSION_NUMBER < OLDEST_SQLITE:
            raise ConfigError(
                f"SQLite {apsw.sqlite_lib_version()} may corrupt its log: "
                "install apsw 3.51.3 or later"
            )
        data_dir.mkdir(parents=True, exist_ok=True)
        self._data_dir = data_dir
        self._free_bytes = free_bytes
        with ExitStack() as undo:  # a file that cannot be used must not stay locked
            self._lock_file = _own(data_dir)
            undo.callback(self._lock_file.close)
            self._connection = queries.connect(data_dir / DATABASE)
            undo.pop_all()
        self._waiting: list[_Operation] = []
        self._wake = threading.Condition()
        self._open = True
        self._writer = threading.Thread(target=self._write, name="store-writer", daemon=True)
        self._writer.start()

    # --- the store's verbs --------------------------------------------------------

    def put(self, groups: Sequence[NewGroup]) -> list[Stored]:
        digests = [digest_of(group.payload) for group in groups]
        n_bytes = sum(len(group.payload) for group in groups)
        room = self._free_bytes(self._data_dir) - RESERVE_BYTES - 2 * n_bytes

        def work(connection: apsw.Connection) -> list[Stored]:
            stored = queries.put(connection, groups, digests)
            if room < 0 and not all(one.duplicate for one in stored):
                raise StoreFull(
                    f"less than {RESERVE_BYTES >> 20} MiB left on {self._data_dir}"
                )
            return stored

        return self._do(work, n_bytes)

    def release(self, gids: Sequence[int]) -> None:
        self._do(lambda connection: queries.release(connection, gids))

    def register(self) -> int:
        return self._do(queries.next_generation)

    def claim(
        self, generation: int, size: int, choose: Chooser, now: float, lease_s: float
    ) -> Batch | str:
        until = now + lease_s
        return self._do(lambda c: queries.claim(c, generation, size, choose, until))

    def read(self, gids: Sequence[int]) -> list[bytes]:
        return self._do(lambda connection: queries.read(connection, gids))

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        self._do(lambda c: queries.extend(c, no, generation, epoch, lease_until))

    def ack(self, no: int, generation: int, epoch: int) -> bool:
        return self._do(lambda connection: queries.ack(connection, no, generation, epoch))

    def load(self, name: str) -> bytes | None:
        return self._do(lambda connection: queries.load(connection, name))

    def save(self, name: str, document: bytes) -> None:
        self._do(lambda connection: queries.save(connection, name, document))

    def buffered(self) -> list[tuple[int, int | None, int]]:
        return self._do(queries.buffered)

    def stats(self) -> StoreStats:
        return self._do(queries.stats)

    def reset(self) -> None:
        self._do(queries.reset)

    def close(self) -> None:
        with self._wake:
            self._open = False
            self._wake.notify()
        self._writer.join()
        self._connection.close()
        self._lock_file.close()

    # --- the writer thread --------------------------------------------------------

    def _do(self, work: Callable[[apsw.Connection], T], n_bytes: int = 0) -> T:
        operation = _Operation(work, n_bytes)
        with self._wake:
            if not self._open:
                raise StoreError("the store is closed")
            self._waiting.append(operation)
            self._wake.notify()
        answer: T = operation.reply.result()
        return answer

    def _write(self) -> None:
        try:
            while operations := self._next_operations():
                self._commit(operations)
        finally:  # also after an error nobody foresaw: no caller may wait for ever
            with self._wake:
                self._open = False
                stranded, self._waiting = self._waiting, []
            _refuse(stranded, StoreError("the store was closed before it could answer"))

    def _next_operations(self) -> list[_Operation]:
        """What goes into the next transaction; empty when the store is closed and drained."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or not self._open)
            n_bytes = 0
            taken = 0
            for operation in self._waiting[:MOST_OPERATIONS]:
                n_bytes += operation.n_bytes
                if taken and n_bytes > MOST_BYTES:
                    break
                taken += 1
            operations, self._waiting = self._waiting[:taken], self._waiting[taken:]
            return operations

    def _commit(self, operations: list[_Operation]) -> None:
        try:
            outcomes = self._transaction(operations)
        except apsw.Error as cause:
            if len(operations) == 1:
                _refuse(operations, _store_error(cause))
                return
            for operation in operations:  # one of them did it; the others shall not suffer
                self._commit([operation])
        else:
            for operation, (value, error) in zip(operations, outcomes):
                if error is None:
                    operation.reply.set_result(value)
                else:
                    operation.reply.set_exception(error)
        finally:
            _refuse(operations, StoreError("the store failed; its log has the traceback"))

    def _transaction(
        self, operations: list[_Operation]
    ) -> list[tuple[Any, AtroposError | None]]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [self._attempt(operation) for operation in operations]
            connection.execute("COMMIT")  # the fsync: nobody has been answered yet
            return outcomes
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _attempt(self, operation: _Operation) -> tuple[Any, AtroposError | None]:
        connection = self._connection
        connection.execute("SAVEPOINT operation")
        try:
            value = operation.work(connection)
        except AtroposError as refused:
            connection.execute("ROLLBACK TO operation")
            connection.execute("RELEASE operation")
            return None, refused
        connection.execute("RELEASE operation")
        return value, None


def _refuse(operations: Sequence[_Operation], error: StoreError) -> None:
    for operation in operations:
        if not operation.reply.done():
            operation.reply.set_exception(error)


def _store_error(cause: apsw.Error) -> StoreError:
    kind = StoreFull if isinstance(cause, apsw.FullError) else StoreError
    error = kind(f"SQLite: {cause}")
    error.__cause__ = cause
    return error


def _own(data_dir: Path) -> Any:
    """Hold a lock that ends with the process, however it ends."""
    lock_file = open(data_dir / "lock", "a+")  # noqa: SIM115 - held until close()
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        lock_file.seek(0)
        owner = lock_file.read().strip() or "another process"
        lock_file.close()
        raise StoreLocked(
            f"{data_dir} belongs to process {owner}: stop it, or choose another --data-dir"
        ) from cause
    lock_file.truncate(0)
    lock_file.write(str(os.getpid()))
    lock_file.flush()
    return lock_file
