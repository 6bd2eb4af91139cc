"""Writer thread with group commit: waiting operations share a transaction.

    caller threads --do--> [waiting] --writer--> BEGIN, a savepoint each, COMMIT --> replies

Many small writes share an fsync. A rejected operation is rolled back to its savepoint and
does not affect the rest. If the database fails, each operation of the transaction runs
again in a separate transaction, so only the failing operation gets the error.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Generic, Protocol, TypeVar

from atroposlib.api.store.sql.schema import Connection
from atroposlib.errors import AtroposError, StoreError

T = TypeVar("T")
Work = Callable[[Connection], T]
_Outcome = tuple[Any, "AtroposError | None"]

MAX_OPERATIONS = 64  # per transaction: with more, the first caller waits longer than an fsync
MAX_TRANSACTION_BYTES = 16 * 2**20  # per transaction: the size of a checkpoint
OPERATION_TIMEOUT_S = 120.0  # limit of a caller, if the disk or the server hangs


def work_name(work: Work[Any]) -> str:
    """Name of an operation in metrics: its function or class, for example claim_in_turn."""
    name = work.__name__ if isinstance(work, FunctionType) else type(work).__name__
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Read(Protocol):
    """Run an operation that reads the tables."""

    def __call__(self, work: Work[T], /) -> T: ...


class Database(Connection, Protocol):
    """The connection of the writer. ``begin`` reopens a lost connection."""

    faults: tuple[type[Exception], ...]  # exceptions of the database
    # Whether nothing was written if ``commit`` raised. False where the response can be lost:
    # then no operation is repeated, since it could happen twice.
    commit_is_certain: bool

    def begin(self) -> None:
        """Start a transaction with the write lock."""

    def commit(self) -> None:
        """Make it durable."""

    def rollback(self) -> None:
        """Roll back an open transaction. Never raises."""

    def fault(self, cause: Exception) -> StoreError:
        """The StoreError of an exception of ``faults``."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class JoinedWork(ABC, Generic[T]):
    """Work that runs together with work of its class at a lower cost than separately."""

    @abstractmethod
    def __call__(self, connection: Connection) -> T:
        """Run it alone."""

    @abstractmethod
    def fits(self, earlier: Sequence[Any]) -> bool:
        """Whether it can run together with these; called with works of its own class."""

    @abstractmethod
    def together(self, connection: Connection, later: Sequence[Any]) -> list[T]:
        """Run it with these. If it raises an AtroposError, each runs alone."""


@dataclass
class _Operation:
    work: Work[Any]
    n_bytes: int
    reply: Future[Any] = field(default_factory=Future)


class Writer:
    """Owns ``database`` and its thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Operation] = []
        self._wake = threading.Condition()
        self._open = True
        self._thread = self._start_thread()

    def _start_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        thread.start()
        return thread

    def do(self, work: Work[T]) -> T:
        """Run ``work`` in a transaction; returns its result once it is durable.

        Raises:
            StoreError: the writer is closed, the database failed, or it did not answer
                within ``OPERATION_TIMEOUT_S``.
        """
        return written_result(self.submit(work))

    def submit(self, work: Work[T], n_bytes: int = 0) -> Future[T]:
        """Queue ``work`` for a transaction; the future gets its result once it is durable.

        Raises:
            StoreError: the writer is closed.
        """
        operation = _Operation(work, n_bytes)
        with self._wake:
            if not self._open:
                raise StoreError("the store is closed")
            self._waiting.append(operation)
            self._wake.notify()
        return operation.reply

    def close(self) -> None:
        """Run the waiting operations, then close the database. Idempotent."""
        with self._wake:
            self._open = False
            self._wake.notify()
        thread = None
        while thread is not self._thread:  # a thread that died started its successor
            thread = self._thread
            thread.join()
        self._database.close()

    # --- the thread ---------------------------------------------------------------

    def _run(self) -> None:
        done = False
        try:
            while operations := self._next_operations():
                self._commit(operations)
            done = True
        finally:
            if not done:  # a bug: log it, and continue in a new thread
                self._thread = self._start_thread()

    def _next_operations(self) -> list[_Operation]:
        """Operations of the next transaction; empty when the writer is closed and drained."""
        with self._wake:
            while True:
                self._wake.wait_for(lambda: self._waiting or not self._open)
                taken = _portion(self._waiting)
                operations, self._waiting = self._waiting[:taken], self._waiting[taken:]
                alive = [
                    operation
                    for operation in operations
                    if operation.reply.set_running_or_notify_cancel()
                ]
                if alive or not operations:
                    return alive

    def _commit(self, operations: list[_Operation]) -> None:
        database = self._database
        committing = False
        try:
            database.begin()
            outcomes = self._outcomes(operations)
            committing = True
            database.commit()
        except database.faults as cause:
            database.rollback()
            again = database.commit_is_certain or not committing
            if len(operations) > 1 and again:
                for operation in operations:  # an operation failed; run each alone
                    self._commit([operation])
            else:
                _refuse(operations, database.fault(cause))
        else:
            for operation, (value, error) in zip(operations, outcomes):
                if error is None:
                    operation.reply.set_result(value)
                else:
                    operation.reply.set_exception(error)
        finally:  # also after an unexpected error: every caller gets a result
            database.rollback()
            _refuse(operations, StoreError("the store failed; its log has the traceback"))

    def _outcomes(self, operations: list[_Operation]) -> list[_Outcome]:
        runs = _runs(operations)
        # A single run needs no savepoint, which copies every written page.
        return [
            outcome for run in runs for outcome in self._attempt(run, within=len(runs) > 1)
        ]

    def _attempt(self, run: list[_Operation], within: bool) -> list[_Outcome]:
        """The outcomes of operations that run together, ``within`` a larger transaction."""
        database, work = self._database, run[0].work
        if within:
            database.execute("SAVEPOINT operation")
        try:
            if len(run) == 1:
                values = [work(database)]
            else:
                assert isinstance(work, JoinedWork)
                values = work.together(database, [operation.work for operation in run[1:]])
        except AtroposError as refused:
            if within:
                database.execute("ROLLBACK TO SAVEPOINT operation")
                database.execute("RELEASE SAVEPOINT operation")
            else:
                database.rollback()
                database.begin()
            if len(run) > 1:
                return [
                    alone
                    for operation in run
                    for alone in self._attempt([operation], within=True)
                ]
            return [(None, refused)]
        if within:
            database.execute("RELEASE SAVEPOINT operation")
        return [(value, None) for value in values]


def _runs(operations: Sequence[_Operation]) -> list[list[_Operation]]:
    """The operations in their order; neighbours that can run together share a list."""
    runs: list[list[_Operation]] = []
    for operation in operations:
        work, before = operation.work, runs[-1] if runs else []
        if (
            before
            and isinstance(work, JoinedWork)
            and type(before[0].work) is type(work)
            and work.fits([neighbour.work for neighbour in before])
        ):
            before.append(operation)
        else:
            runs.append([operation])
    return runs


def written_result(reply: Future[T]) -> T:
    """Wait for an operation of a writer, as :meth:`Writer.do`."""
    try:
        return reply.result(timeout=OPERATION_TIMEOUT_S)
    except FutureTimeout as cause:
        raise gave_up(reply) from cause


def gave_up(reply: Future[Any]) -> StoreError:
    """The error for an operation that took ``OPERATION_TIMEOUT_S``, which is cancelled."""
    reply.cancel()  # if it still waits, it must not run after this error
    return StoreError(f"the store did not answer within {OPERATION_TIMEOUT_S:.0f} s")


def _portion(waiting: Sequence[_Operation]) -> int:
    """Number of waiting operations, from the first, for the next transaction."""
    n_bytes = 0
    for taken, operation in enumerate(waiting[:MAX_OPERATIONS]):
        n_bytes += operation.n_bytes
        if taken and n_bytes > MAX_TRANSACTION_BYTES:
            return taken
    return min(len(waiting), MAX_OPERATIONS)


def _refuse(operations: Sequence[_Operation], error: StoreError) -> None:
    for operation in operations:
        if not operation.reply.done():
            operation.reply.set_exception(error)
