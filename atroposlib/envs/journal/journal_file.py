"""File of a journal: locked by its process, written and synchronised by a thread.

    write(record) --> queue --> thread: written within 20 ms, fsync within half a second or awaited
                                   '--> rewritten when most of it has ended, or beyond its bound

What the system has survives a kill of the process; the synchronisation is for the machine. Only the
thread touches the file. An error of the file system closes the journal and is logged: the run
continues without.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from atroposlib.envs.journal.journal_records import (
    Record,
    RolloutRepeated,
    encode_frame,
    whole_records,
)
from atroposlib.envs.journal.journal_state import JournalState, state_after

logger = logging.getLogger(__name__)
SUFFIX = ".journal"
PARTIAL = ".partial"  # added to the name of a file that is being written
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
        self._waiting: list[threading.Event] = []

    def open(self, first: Iterable[Record]) -> None:
        """Create the file with the records ``first``, lock it and start the thread.

        Raises OSError: the file system refuses.
        """
        partial = self.path.with_name(self.path.name + PARTIAL)
        self._descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        lock(self._descriptor)
        for record in first:
            self._append(record, encode_frame(record))
        os.fsync(self._descriptor)
        self._publish(partial)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> int:
        """Append ``record``, and return its number before it is in the file."""
        if self.failure is None and not self._closing:
            self._written += 1
            self._queue.append(_Pending(record, encode_frame(record)))
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
        os.close(self._descriptor)  # gives the lock back

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
                if self._closing or self._waiting or self._pause_s() == 0.0:
                    self._synchronise()
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
        return None if self._due is None else max(0.0, self._due - monotonic())

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
        partial = self.path.with_name(self.path.name + PARTIAL)
        partial.unlink(missing_ok=True)
        old, old_state = self._descriptor, self._state
        self._descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            lock(self._descriptor)
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
            os.close(old)

    def _publish(self, partial: Path) -> None:
        os.replace(partial, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def lock(descriptor: int) -> None:
    """Lock an open journal for this process. Raises OSError: locked, or no locks here."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@dataclass
class FreeJournals:
    """Journals whose processes have ended, locked for this process."""

    states: Sequence[JournalState[Record]]  # newest first
    files: Sequence[tuple[Path, int]]

    def delete(self) -> None:
        """Delete the files, whose records are in another file by now."""
        for path, _ in self.files:
            path.unlink(missing_ok=True)
            path.with_name(path.name + PARTIAL).unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Give the locks back."""
        for _, descriptor in self.files:
            os.close(descriptor)
        self.files = ()


def take_free_journals(folder: Path, name: str) -> FreeJournals:
    """The journals of the environment ``name`` in ``folder`` that no process holds."""
    form = re.compile(rf"{re.escape(name)}-[0-9a-f]+{re.escape(SUFFIX)}")
    files = [*_lock_each(path for path in folder.iterdir() if form.fullmatch(path.name))]
    files.sort(key=lambda file: os.fstat(file[1]).st_mtime, reverse=True)
    return FreeJournals([state_after(_records(*file)) for file in files], files)


def _lock_each(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            logger.warning("the journal %s cannot be read: %s", path, error)
            continue
        try:
            lock(descriptor)
            # Its process may have replaced it between the two calls.
            if os.stat(path).st_ino != os.fstat(descriptor).st_ino:
                raise FileNotFoundError(path)
        except OSError:
            os.close(descriptor)
            continue
        yield path, descriptor


def _records(path: Path, descriptor: int) -> Iterator[Record]:
    data, end = path.read_bytes(), 0
    for record, end in whole_records(data):
        yield record
    if end < len(data):
        left = len(data) - end
        logger.warning("the last %d bytes of the journal %s are no whole record", left, path)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
