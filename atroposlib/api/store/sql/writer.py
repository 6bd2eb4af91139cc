"""The writer thread: whatever waits goes into one transaction, and is answered after it.

    caller threads --submit--> [waiting] --writer--> BEGIN, a savepoint each, COMMIT --> replies

Many small writes share one fsync that way. An operation that is refused is rolled back to
its savepoint and leaves its neighbours alone; one at which the database fails is found by
running each of its transaction alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from atroposlib.api.store.sql.schema import Connection
from atroposlib.errors import AtroposError, StoreError

T = TypeVar("T")
Work = Callable[[Connection], T]
_Outcome = tuple[Any, "AtroposError | None"]

MAX_OPERATIONS = 64  # per transaction: beyond, the first caller waits longer than an fsync
MAX_TRANSACTION_BYTES = 16 * 2**20  # per transaction: one checkpoint's worth
OPERATION_TIMEOUT_S = 120.0  # of a caller: a disk or server that hangs must not hang everybody


class Database(Connection, Protocol):
    """A connection that the writer has for itself.

    It may come and go: ``begin`` opens it again if it was lost.
    """

    faults: tuple[type[Exception], ...]  # what it raises
    # Whether nothing was written if ``commit`` raised. False where the answer can get lost:
    # then nothing is tried again, for it could happen twice.
    commit_is_certain: bool

    def begin(self) -> None:
        """Start a transaction in which nobody else writes."""

    def commit(self) -> None:
        """Make it durable."""

    def rollback(self) -> None:
        """End what ``begin`` began, if it is not over. Never raises."""

    def fault(self, cause: Exception) -> StoreError:
        """One of ``faults`` in words of ours."""

    def close(self) -> None:
        """Let go. Idempotent."""


@dataclass
class _Operation:
    work: Work[Any]
    n_bytes: int
    reply: Future[Any] = field(default_factory=Future)


class Writer:
    """Owns ``database`` and its thread."""

    def __init__(self, database: Database, name: str = "store-writer") -> None:
        self._database = database
        self._name = name
        self._waiting: list[_Operation] = []
        self._wake = threading.Condition()
        self._open = True
        self._thread = self._started()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        return thread

    def submit(self, work: Work[T], n_bytes: int = 0) -> Future[T]:
        """Have ``work`` done in a transaction; the reply comes once it is durable.

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

    def do(self, work: Work[T], n_bytes: int = 0) -> T:
        """Like :meth:`submit`, and wait for the reply.

        Raises:
            StoreError: the database failed, or did not answer within ``LONGEST_WAIT_S``.
        """
        reply = self.submit(work, n_bytes)
        try:
            return reply.result(timeout=OPERATION_TIMEOUT_S)
        except FutureTimeout as cause:
            reply.cancel()  # if it still waits in line, it shall not happen behind our back
            raise StoreError(
                f"the store did not answer within {OPERATION_TIMEOUT_S:.0f} s"
            ) from cause

    def close(self) -> None:
        """Do what waits, then let go of the database. Idempotent."""
        with self._wake:
            self._open = False
            self._wake.notify()
        thread = None
        while thread is not self._thread:  # one that died left another in its place
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
            if not done:  # a defect of ours: it is seen in the log, and the queue goes on
                self._thread = self._started()

    def _next_operations(self) -> list[_Operation]:
        """What goes into the next transaction; empty when the writer is closed and drained."""
        with self._wake:
            while True:
                self._wake.wait_for(lambda: self._waiting or not self._open)
                taken = _portion(self._waiting)
                operations, self._waiting = self._waiting[:taken], self._waiting[taken:]
                alive = [one for one in operations if one.reply.set_running_or_notify_cancel()]
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
                for operation in operations:  # one of them did it; the others shall not suffer
                    self._commit([operation])
            else:
                _refuse(operations, database.fault(cause))
        else:
            for operation, (value, error) in zip(operations, outcomes):
                if error is None:
                    operation.reply.set_result(value)
                else:
                    operation.reply.set_exception(error)
        finally:  # also after an error nobody foresaw: no caller may wait for ever
            database.rollback()
            _refuse(operations, StoreError("the store failed; its log has the traceback"))

    def _outcomes(self, operations: list[_Operation]) -> list[_Outcome]:
        if len(operations) > 1:
            return [self._attempt(operation) for operation in operations]
        try:  # alone it needs no savepoint, which copies every page that is written to
            return [(operations[0].work(self._database), None)]
        except AtroposError as refused:
            self._database.rollback()
            self._database.begin()
            return [(None, refused)]

    def _attempt(self, operation: _Operation) -> _Outcome:
        database = self._database
        database.execute("SAVEPOINT operation")
        try:
            value = operation.work(database)
        except AtroposError as refused:
            database.execute("ROLLBACK TO SAVEPOINT operation")
            database.execute("RELEASE SAVEPOINT operation")
            return None, refused
        database.execute("RELEASE SAVEPOINT operation")
        return value, None


def _portion(waiting: Sequence[_Operation]) -> int:
    """How many of those that wait, from the first one, share the next transaction."""
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
