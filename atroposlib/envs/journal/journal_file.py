"""File of a journal: held by its process, written and synchronised by a thread.

    write(record) --> queue --> thread: written within 20 ms, fsync within half a second or awaited
                                   '--> rewritten when most of it has ended, or beyond its bound

What the system has survives a kill of the process; the synchronisation is for the machine. Only the
thread touches the file. An error of the file system closes the journal and is logged: the run
continues without.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from atroposlib.envs.journal.journal_owner import PARTIAL, RENEW_S, hold_journal, release
from atroposlib.envs.journal.journal_records import (
    Record,
    RolloutRepeated,
    encode_frame,
    whole_records,
)
from atroposlib.envs.journal.journal_state import JournalState
from atroposlib.utils.io import sync_path

logger = logging.getLogger(__name__)
GATHER_S = 0.02  # records of this time are written together
SYNC_S = 0.5  # longest time until a record is synchronised
REWRITE_BYTES = 64 * 2**20  # smaller files are not rewritten
CLOSE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class _Frame:
    offset: int
    size: int


@dataclass
class _Pending:
    """A record on its way to the file, or a wish that all before it are synchronised."""

    record: Record | None
    frame: bytes = b""
    synchronised: threading.Event | None = None


@dataclass
class JournalFile:
    """Records of a process, appended to ``path``.

    Args:
        limit_bytes: bytes of what has not ended; beyond it the samples of the oldest rollouts
            are dropped and counted.
    """

    path: Path
    limit_bytes: int
    dropped_samples: int = 0
    failure: OSError | None = None
    synchronised: int = 0  # records on the disk, of those that were written
    _queue: deque[_Pending] = field(default_factory=deque)
    _wake: threading.Event = field(default_factory=threading.Event)
    _is_urgent: threading.Event = field(default_factory=threading.Event)
    _closing: bool = False

    def __post_init__(self) -> None:
        self._state: JournalState[_Frame] = JournalState()
        self._size = 0
        self._written = self._applied = 0  # records: queued, and handed to the system
        self._due: float | None = None  # monotonic, of the next synchronisation
        self._has_lock = True  # False: a lease, renewed by the thread
        self._waiting: list[threading.Event] = []

    def open(self, first: Iterable[Record]) -> None:
        """Create the file with the records ``first``, hold it and start the thread.

        Raises OSError: the file system refuses; nothing is left of the file.
        """
        partial = self._create()
        try:
            for record in first:
                self._append(record, encode_frame(record))
            os.fsync(self._descriptor)
            self._publish(partial)
        except OSError:
            release(self._descriptor)
            partial.unlink(missing_ok=True)
            raise
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def write(self, record: Record, *, at_once: bool = False) -> int:
        """Append ``record``, and return its number before it is in the file.

        ``at_once``: without the pause in which further records are gathered.
        """
        if self.failure is None and not self._closing:
            self._written += 1
            self._queue.append(_Pending(record, encode_frame(record)))
            if at_once:
                self._is_urgent.set()
            self._wake.set()
        return self._written

    def synchronise(self) -> threading.Event:
        """An event that is set when all earlier records are on the disk, or the journal failed."""
        event = threading.Event()
        self._queue.append(_Pending(None, synchronised=event))
        self._is_urgent.set()
        self._wake.set()
        if self.failure is not None:
            event.set()
        return event

    def close(self, *, delete: bool = False) -> None:
        """Write what is left and end the thread; delete the file if nothing in it is needed."""
        self._closing = True
        self._is_urgent.set()
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        if delete:
            self.path.unlink(missing_ok=True)
        release(self._descriptor)

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._closing and not self._queue):
                self._wake.wait(self._pause_s())
                self._wake.clear()
                if not self._is_urgent.is_set():
                    self._is_urgent.wait(GATHER_S)
                self._is_urgent.clear()
                self._write_queued()
                if self._closing or self._waiting or self._is_due():
                    self._synchronise()
                if not self._has_lock:
                    os.utime(self._descriptor)  # renews the lease, which RENEW_S bounds
                if self._has_grown():
                    self._rewrite()
            self._synchronise()
        except OSError as error:
            self.failure = error
            logger.error(
                "the journal %s cannot be written, so finished samples are kept in memory "
                "alone from now on: %s",
                self.path,
                error,
            )
        finally:
            for pending in self._queue:
                if pending.synchronised is not None:
                    self._waiting.append(pending.synchronised)
            for event in self._waiting:
                event.set()

    def _pause_s(self) -> float | None:
        if self._due is None:
            return None if self._has_lock else RENEW_S
        return max(0.0, self._due - monotonic())

    def _is_due(self) -> bool:
        return self._due is not None and self._due <= monotonic()

    def _write_queued(self) -> None:
        frames: list[bytes] = []
        while self._queue:
            pending = self._queue.popleft()
            if pending.synchronised is not None:
                self._waiting.append(pending.synchronised)
            if pending.record is not None:
                frame = _Frame(self._size, len(pending.frame))
                self._size += frame.size
                self._state.apply(pending.record, frame)
                frames.append(pending.frame)
                self._applied += 1
        if frames:
            _write_all(self._descriptor, b"".join(frames))
            if self._due is None:
                self._due = monotonic() + SYNC_S

    def _append(self, record: Record, frame: bytes) -> None:
        _write_all(self._descriptor, frame)
        self._state.apply(record, _Frame(self._size, len(frame)))
        self._size += len(frame)

    def _synchronise(self) -> None:
        if self.synchronised < self._applied:
            os.fdatasync(self._descriptor)
            self.synchronised = self._applied
        self._due = None
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    def _live_bytes(self) -> int:
        return sum(frame.size for frame in self._state.kept_records())

    def _has_grown(self) -> bool:
        return self._size > min(REWRITE_BYTES, self.limit_bytes)

    def _rewrite(self) -> None:
        """Copy what has not ended to a new file, which takes the name of this one."""
        live = self._live_bytes()
        for name, entry in [*self._state.open.items()]:
            if live <= self.limit_bytes:
                break
            live -= sum(frame.size for frame in (*entry.samples, *entry.groups))
            self.dropped_samples += len(entry.samples)
            repeated = RolloutRepeated(name)
            self._append(repeated, encode_frame(repeated))
        if 2 * live > self._size:
            return  # copying would free too little
        old, old_state = self._descriptor, self._state
        try:
            partial = self._create()
            self._state, self._size = JournalState(), 0
            for record in old_state.head():
                self._append(record, encode_frame(record))
            for frame in old_state.kept_records():
                data = os.pread(old, frame.size, frame.offset)
                for record, _ in whole_records(data):
                    self._append(record, data)
            os.fsync(self._descriptor)
            self._publish(partial)
            self.synchronised = self._applied
        finally:
            release(old)

    def _create(self) -> Path:
        """Create and hold the file under the name that it has until it is whole."""
        partial = self.path.with_name(self.path.name + PARTIAL)
        partial.unlink(missing_ok=True)
        self._descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            self._has_lock = hold_journal(self._descriptor)
        except OSError:
            release(self._descriptor)
            partial.unlink(missing_ok=True)
            raise
        return partial

    def _publish(self, partial: Path) -> None:
        os.replace(partial, self.path)
        sync_path(self.path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
