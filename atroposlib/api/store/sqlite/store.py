"""The embedded store: one SQLite file that survives kill -9 and power cuts.

put, claim, ack ... -> writer thread -> the one connection that writes
read, stats, load   -> up to four read-only connections, beside the writer
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import apsw

from atroposlib.api.common.store_protocol import DEFAULT_MAX_BYTES
from atroposlib.api.store.sql.store import SqlStore
from atroposlib.api.store.sql.writer import Work, Writer
from atroposlib.api.store.sqlite.database import (
    Readers,
    SqliteDatabase,
    connect,
    fault,
    require_layout,
)
from atroposlib.api.store.sqlite.location import free_bytes as free_bytes_of
from atroposlib.api.store.sqlite.location import own, require_local
from atroposlib.errors import ConfigError

T = TypeVar("T")

# Before 3.51.3 a reset of the write-ahead log can corrupt the file.
OLDEST_SQLITE = 3_051_003
DATABASE = "queue.sqlite"
# Three checkpoints. Claims and acks must write too, and a failed checkpoint keeps its log:
# a disk filled to the brim by puts could never be drained again.
RESERVE_BYTES = 48 * 2**20


class SqliteStore(SqlStore):
    """See :class:`atroposlib.api.common.store_protocol.Store`.

    Args:
        data_dir: made if it is missing; on a local disk.
        max_bytes: bound on the payloads on hand.
        free_bytes: free space of the file system of a path.
        vfs: a registered apsw VFS that the files go through, for tests.
        synchronous: anything but FULL breaks promises, which tests show.

    Raises:
        StoreLocked: another process owns ``data_dir``.
        StoreError: the file is damaged, or the disk fails.
        ConfigError: the SQLite library or the file system cannot be trusted, or another
            release wrote the files.
    """

    def __init__(
        self,
        data_dir: Path,
        max_bytes: int = DEFAULT_MAX_BYTES,
        free_bytes: Callable[[Path], int] = free_bytes_of,
        vfs: str | None = None,
        synchronous: str = "FULL",
    ) -> None:
        super().__init__(max_bytes)
        if apsw.SQLITE_VERSION_NUMBER < OLDEST_SQLITE:
            raise ConfigError(
                f"SQLite {apsw.sqlite_lib_version()} may corrupt its log: "
                "install apsw 3.51.3 or later"
            )
        data_dir.mkdir(parents=True, exist_ok=True)
        require_local(data_dir)
        self._data_dir = data_dir
        self._free_bytes = free_bytes
        path = data_dir / DATABASE
        self._log_file = data_dir / (DATABASE + "-wal")
        with ExitStack() as undo:  # a file that cannot be used must not stay locked
            self._lock_file = own(data_dir)
            undo.callback(self._lock_file.close)
            try:
                connection = connect(path, vfs, synchronous, read_only=False)
                undo.callback(connection.close, True)
                require_layout(connection, path)
            except apsw.Error as cause:
                raise fault(cause) from cause
            undo.pop_all()
        self._readers = Readers(lambda: connect(path, vfs, synchronous, read_only=True))
        self._database = SqliteDatabase(connection, self._readers)
        self._writer = Writer(self._database)

    def _write(self, work: Work[T], n_bytes: int = 0) -> T:
        return self._writer.do(work, n_bytes)

    def _look(self, work: Work[T]) -> T:
        with self._readers.one() as connection:
            return work(connection)

    def _spare_bytes(self) -> int:
        # The log keeps its length when it starts over: that part of the reserve is taken,
        # and counting it twice would refuse puts for ever once it has grown.
        log = (
            min(self._log_file.stat().st_size, RESERVE_BYTES) if self._log_file.exists() else 0
        )
        on_disk = self._free_bytes(self._data_dir) - RESERVE_BYTES + log
        return on_disk + self._database.free_page_bytes()

    def close(self) -> None:
        """Finish what was begun and let go of the files. Idempotent."""
        self._readers.close()  # first: who closes last copies the log into the file
        self._writer.close()
        self._lock_file.close()
