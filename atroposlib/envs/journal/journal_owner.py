"""Ownership of a journal: a lock (flock) of its process, else a lease that the process renews.

    start of a process --> journals of its name --free--> taken over by this process alone

The lock ends with the process. On a file system without locks the time of the file is the
lease: its process renews it every two seconds, and a file that nobody renewed for ten seconds is
free. All times are those of the file server. A process that stopped for longer while another took
its journal posts under the same keys, so the API stores each group once.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atroposlib.envs.journal.journal_records import Record, whole_records
from atroposlib.envs.journal.journal_state import JournalState, state_after

logger = logging.getLogger(__name__)
SUFFIX = ".journal"
PARTIAL = ".partial"  # added to the name of a file that is being written
TAKEN = ".taken-"  # added, with a number, to the name of a file whose lease ended
RENEW_S = 2.0
LEASE_S = 10.0
LOOK_S = 0.5  # time between two looks at a lease
NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}

# Descriptors of this process. A forked child shares the locks of its parent, and would keep the
# locks of a dead parent: no next life could take the journal.
_held: set[int] = set()


def _close_in_child() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_in_child)


def hold_journal(descriptor: int) -> bool:
    """Make this process the owner of an open journal. False: there are no locks, renew the lease.

    Raises OSError: another process holds it. Call :func:`release` then as well.
    """
    _held.add(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def release(descriptor: int) -> None:
    """Close a journal that is held; in a forked child it is closed already."""
    if descriptor in _held:
        _held.discard(descriptor)
        os.close(descriptor)


@dataclass
class FreeJournals:
    """Journals whose processes have ended, held by this process."""

    states: Sequence[JournalState[Record]]  # newest first
    files: Sequence[tuple[Path, int]]

    def delete(self) -> None:
        """Delete the files, whose records are in another file by now."""
        for path, _ in self.files:
            path.unlink(missing_ok=True)
            _renamed(path, PARTIAL).unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Leave the files to other processes."""
        for _, descriptor in self.files:
            release(descriptor)
        self.files = ()


def take_free_journals(folder: Path, name: str, lease_s: float = LEASE_S) -> FreeJournals:
    """The journals of the environment ``name`` in ``folder`` that no process holds.

    Without locks the call takes up to ``lease_s``, until each lease is renewed or has ended.
    """
    form = re.compile(rf"{re.escape(name)}-[0-9a-f]+{re.escape(SUFFIX)}({TAKEN}[0-9a-f]+)?")
    paths = [path for path in folder.iterdir() if form.fullmatch(path.name)]
    files = [*_take_each(paths, lease_s)]
    files.sort(key=lambda file: os.fstat(file[1]).st_mtime, reverse=True)
    return FreeJournals([state_after(_records(*file)) for file in files], files)


def _take_each(paths: Iterable[Path], lease_s: float) -> Iterator[tuple[Path, int]]:
    leased: list[Path] = []
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            logger.warning("the journal %s cannot be read: %s", path, error)
            continue
        try:
            has_lock = hold_journal(descriptor)
            # Its process may have replaced it between the two calls.
            is_same = has_lock and os.stat(path).st_ino == os.fstat(descriptor).st_ino
        except OSError:
            has_lock, is_same = True, False
        if is_same:
            yield path, descriptor
            continue
        release(descriptor)
        if not has_lock:
            leased.append(path)
    yield from _take_ended_leases(leased, lease_s)


def _take_ended_leases(paths: Sequence[Path], lease_s: float) -> Iterator[tuple[Path, int]]:
    """Wait until each lease is renewed or has ended; take the ended by a new name."""
    first_ns = {path: _renewed_ns(path) for path in paths}
    for path, begun_ns in first_ns.items():
        while _server_time(path.parent) - begun_ns / 1e9 <= lease_s:
            if _renewed_ns(path) != begun_ns:
                break
            time.sleep(LOOK_S)
        if _renewed_ns(path) != begun_ns:
            continue  # its process lives, or another process took it
        taken = _renamed(path, f"{TAKEN}{uuid.uuid4().hex[:12]}")
        with suppress(FileNotFoundError):  # only a single process can rename the file
            os.utime(path)  # first: a third process finds the new name with a new lease
            os.rename(path, taken)
            descriptor = os.open(taken, os.O_RDWR)
            hold_journal(descriptor)
            yield taken, descriptor


def _renewed_ns(path: Path) -> int:
    """Time of the last renewal; 0 if the file is gone."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _renamed(path: Path, suffix: str) -> Path:
    return path.with_name(path.name.split(TAKEN)[0] + suffix)


def _server_time(folder: Path) -> float:
    """The time of the file server, in seconds."""
    probe = folder / f".time-{uuid.uuid4().hex}"
    descriptor = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        probe.unlink()


def _records(path: Path, descriptor: int) -> Iterator[Record]:
    data, end = path.read_bytes(), 0
    for record, end in whole_records(data):
        yield record
    if end < len(data):
        left = len(data) - end
        logger.warning("the last %d bytes of the journal %s are no whole record", left, path)
