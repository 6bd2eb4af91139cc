"""SQLite store: a database and a log of payloads that survive kill -9 and power cuts.

put, claim, ack ... -> writer thread -> payload log, then a connection that writes
read, stats, load   -> up to four read-only connections, concurrent to the writer

The data directory is locked by a single process, and must be on a local file system.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import apsw

from atroposlib.api.common.records import StoreStats
from atroposlib.api.store.sql.rewriting import Convert
from atroposlib.api.store.sql.schema import Connection, QueueMeta
from atroposlib.api.store.sql.sql_store import DEFAULT_MAX_BYTES, Store
from atroposlib.api.store.sql.writer import Database, Writer
from atroposlib.api.store.sqlite.database import (
    FAULTS,
    SqliteConnection,
    SqliteDatabase,
    SqliteReaders,
    open_database,
    sqlite_fault,
)
from atroposlib.api.store.sqlite.opening import begin_use, log_of
from atroposlib.api.store.sqlite.payload_log import SEGMENT_BYTES, PayloadLog
from atroposlib.api.store.sqlite.retention import tolerated_bytes
from atroposlib.api.store.sqlite.rewriting import rewrite
from atroposlib.api.store.sqlite.segment_files import SegmentFiles
from atroposlib.api.store.sqlite.segment_payloads import SegmentPayloads
from atroposlib.errors import ConfigError, StoreFull, StoreLocked
from atroposlib.utils.command.folder_lock import HOLDER, FolderLock
from atroposlib.utils.io import DISK_RESERVE_BYTES

# Before 3.51.3 a reset of the write-ahead log can corrupt the file.
MIN_SQLITE_VERSION = 3_051_003
DATABASE = "queue.sqlite"
# The size of three checkpoints. Claims and acks write too, and a failed checkpoint keeps its
# log: a disk that puts fill completely could never be drained.
RESERVE_BYTES = DISK_RESERVE_BYTES
# Bytes of the payload log above its bound: the active segment, a segment that is being moved,
# and the largest body.
UNSEALED_BYTES = 256 * 2**20
# f_type of statfs(2). On these, locks and fsync are unreliable, and the shared memory of the
# log does not work across machines. 9p and FUSE are not listed: containers (gVisor,
# fuse-overlayfs) report these types for the local disk of their host.
NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x5346414F: "AFS",
    0x73757245: "Coda",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
}
LOCAL_DIRECTORIES = ("/var/tmp", "/tmp", "/dev/shm")


# --- the directory --------------------------------------------------------------------


def network_file_system(magic: int) -> str | None:
    """Name of the network file system with this magic number; None for any number that is not listed."""
    return NETWORK_FILE_SYSTEMS.get(magic & 0xFFFFFFFF)


def magic_of(path: Path) -> int:
    """``f_type`` of the file system of ``path``; 0 where the platform has none."""
    if sys.platform != "linux":
        return 0
    answer = ctypes.create_string_buffer(512)  # longer than any struct statfs
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), answer) != 0:
        return 0
    return ctypes.c_long.from_buffer(answer).value


def require_local(path: Path) -> None:
    """Reject a directory on a network file system; the message names local directories."""
    system = network_file_system(magic_of(path))
    if system is None:
        return
    places = [
        place
        for place in LOCAL_DIRECTORIES
        if os.access(place, os.W_OK) and network_file_system(magic_of(Path(place))) is None
    ]
    raise ConfigError(
        f"{path} is on {system}, where a queue on SQLite can be lost: give a --data-dir on a "
        f"local disk ({', '.join(places) or 'none was found'}; /dev/shm ends with the "
        "machine), or use --store postgresql://..."
    )


def free_bytes_of(path: Path) -> int:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


# --- the store ------------------------------------------------------------------------


class SqliteStore(SegmentPayloads, Store):
    """See :class:`atroposlib.api.store.sql.sql_store.Store`.

    Args:
        data_dir: created if missing; on a local disk.
        max_bytes: bound on the bytes of stored payloads.
        archive_bytes: retired payloads kept for the explorer; 0 frees payloads at once.
        free_bytes: function from a path to the free bytes of its file system.
        segment_bytes: size of a segment of the payload log.
        vfs: name of a registered apsw VFS, for tests.
        files: segment files of ``data_dir``, for tests.
        writer: makes the writer, for tests.
        convert: from the JSON of a group of an earlier release to the stored form; None refuses
            a directory of that release.
        synchronous: only FULL is durable; the rest is for tests.

    Raises:
        StoreLocked: another process owns ``data_dir``.
        StoreError: the file is damaged, or the disk fails.
        ConfigError: the SQLite library is too old, the directory is on a network, or
            the files have another layout.
    """

    def __init__(
        self,
        data_dir: Path,
        max_bytes: int = DEFAULT_MAX_BYTES,
        free_bytes: Callable[[Path], int] = free_bytes_of,
        segment_bytes: int = SEGMENT_BYTES,
        vfs: str | None = None,
        files: SegmentFiles | None = None,
        synchronous: str = "FULL",
        archive_bytes: int = 0,
        writer: Callable[[Database], Writer] = Writer,
        convert: Convert | None = None,
    ) -> None:
        if apsw.SQLITE_VERSION_NUMBER < MIN_SQLITE_VERSION:
            raise ConfigError(
                f"SQLite {apsw.sqlite_lib_version()} may corrupt its log: "
                "install apsw 3.51.3 or later"
            )
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_local(data_dir)
        self._data_dir = data_dir
        self.archive = data_dir / "archive" / "index.sqlite"
        self._free_bytes, self._segment_bytes = free_bytes, segment_bytes
        self._archive_bytes = archive_bytes
        files = files or SegmentFiles(data_dir)
        self._log = PayloadLog(files, self._spare_bytes, segment_bytes, archive_bytes)
        path = data_dir / DATABASE
        self._wal = log_of(path)
        with ExitStack() as undo:  # unlock the directory on an error
            try:
                self._lock = FolderLock(data_dir, "stop it, or choose another --data-dir")
            except ConfigError as error:
                raise StoreLocked(str(error)) from error
            undo.callback(self._lock.close)
            try:
                had_log = self._wal.exists() and self._wal.stat().st_size > 0
                connection = open_database(path, vfs, synchronous, read_only=False)
                undo.callback(connection.close, True)
                filled = files.filled_numbers()
                is_old = begin_use(connection, path, had_log, filled, convert is not None)
                self._log.recover(SqliteConnection(connection))
            except FAULTS as cause:
                raise sqlite_fault(cause) from cause
            undo.pop_all()
        for name in (HOLDER, DATABASE, DATABASE + "-wal", DATABASE + "-shm"):
            with suppress(OSError):  # ignored: files of another owner, or in the VFS of a test
                os.chmod(data_dir / name, 0o600)  # the prompts are the user's
        self._readers = SqliteReaders(
            lambda: open_database(path, vfs, synchronous, read_only=True)
        )
        self._database = SqliteDatabase(connection, self._readers, self._log)
        if is_old and convert is not None:
            self._rewrite(convert)
        super().__init__(writer(self._database), self._readers.run, max_bytes)

    def _rewrite(self, convert: Convert) -> None:
        try:
            rewrite(self._database, self._log, convert)
        except FAULTS as cause:
            self._database.close()
            self._lock.close()
            raise sqlite_fault(cause) from cause

    def _keep(self, connection: Connection, gid: int, body: bytes) -> None:
        self._log.append(connection, gid, body)

    def _require_capacity(self, meta: QueueMeta, new_bytes: int) -> None:
        super()._require_capacity(meta, new_bytes)
        bound = self.max_bytes + tolerated_bytes(self.max_bytes, self._segment_bytes)
        if self._log.disk_bytes + new_bytes > bound + self._archive_bytes + UNSEALED_BYTES:
            raise StoreFull("retired payloads are still being freed: try again")
        if (spare := self._spare_bytes()) < new_bytes:
            raise StoreFull(
                f"the disk of the store is full up to its reserve of {RESERVE_BYTES / 1e6:.0f} MB:"
                f" {max(0, spare) / 1e6:.1f} MB above it, {new_bytes / 1e6:.1f} MB are posted;"
                " free some space"
            )

    def _spare_bytes(self) -> int:
        # A restarted log of SQLite keeps its length, which is part of the reserve. Counting
        # it twice would reject every put once the log has grown.
        wal = 0
        with suppress(OSError):
            wal = min(os.stat(self._wal).st_size, RESERVE_BYTES)
        free = self._free_bytes(self._data_dir) + wal - RESERVE_BYTES
        return free - self._log.pending_bytes

    def pin(self, gids: Sequence[int], kept: bool = True) -> None:
        if self._archive_bytes <= 0:
            super().pin(gids, kept)
        self.do(lambda c: self._log.pin(c, gids, kept))

    def stats(self) -> StoreStats:
        return replace(super().stats(), disk_bytes=self._log.disk_bytes)

    def close(self) -> None:
        """Finish pending operations and close the files. Idempotent."""
        self._readers.close()  # first: the last connection to close copies the log into the file
        self._writer.close()
        self._lock.close()
