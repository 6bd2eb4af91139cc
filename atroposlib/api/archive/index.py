"""Index of rollouts in SQLite: tables, and the file of each run.

    records --submit--> Indexer --write--> index.sqlite --read--> Explorer

A file holds a single run. When the next run begins in the same data directory, a copy is set aside,
``index-<first group>.sqlite``, and the file is emptied. Samples of drops in the file and the copies
each have half of ``extra_bytes``; beyond, the oldest are deleted first.

Rows of ``rollout`` can be rebuilt from the payloads. Reports of participants cannot, so a
damaged file is set aside and never deleted.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import msgspec

from atroposlib.api.archive.filters import KIND, SPAN
from atroposlib.api.archive.records import DropFact, Record, RunFacts, trim_samples
from atroposlib.errors import ConfigError, UnknownGroup

log = logging.getLogger(__name__)

LAYOUT = 1
EXTRA_BYTES = 64 * 2**20  # default
BUSY_MS = 10_000
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE rollout (
    gid INTEGER NOT NULL, row INTEGER NOT NULL, env TEXT, item TEXT, group_id TEXT,
    batch_no INTEGER, step INTEGER, version_min INTEGER, version_max INTEGER,
    arrived_version INTEGER, staleness INTEGER, reward REAL, advantage REAL,
    n_tokens INTEGER, n_trained INTEGER, turns INTEGER, tool_calls INTEGER,
    finish_reason TEXT, outcome TEXT, logprob_mean REAL, diff_mean REAL, diff_max REAL,
    clipped_share REAL, arrived REAL, generate_s REAL, state TEXT, why TEXT,
    PRIMARY KEY (gid, row)) WITHOUT ROWID;
CREATE TABLE rollup (
    batch_no INTEGER NOT NULL, env TEXT NOT NULL, n INTEGER NOT NULL,
    reward REAL, reward_square REAL, tokens INTEGER, trained INTEGER, turns INTEGER,
    staleness INTEGER, diff_max REAL, ok INTEGER, truncated INTEGER,
    PRIMARY KEY (batch_no, env)) WITHOUT ROWID;
CREATE TABLE batch (
    no INTEGER PRIMARY KEY, step INTEGER, state TEXT, epoch INTEGER, generation INTEGER,
    tries INTEGER, lease_until REAL, world_size INTEGER, ranks TEXT, n_seq INTEGER,
    min_version INTEGER, claimed REAL, acked REAL);
CREATE TABLE step (
    role TEXT NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL, batch_no INTEGER,
    at REAL NOT NULL, body TEXT NOT NULL, PRIMARY KEY (role, name, step)) WITHOUT ROWID;
CREATE TABLE note (
    gid INTEGER NOT NULL, row INTEGER NOT NULL, batch_no INTEGER NOT NULL,
    advantages BLOB, logprobs BLOB, flags BLOB, PRIMARY KEY (gid, row)) WITHOUT ROWID;
CREATE TABLE drop_sample (
    id INTEGER PRIMARY KEY, env TEXT, reason TEXT NOT NULL, dropped INTEGER NOT NULL,
    at REAL NOT NULL, media TEXT, sample BLOB);  -- media: 'json' of earlier releases
CREATE TABLE weights (
    id INTEGER PRIMARY KEY, server TEXT, version INTEGER, at REAL NOT NULL);
CREATE TABLE event (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, at REAL NOT NULL,
    body TEXT NOT NULL)
"""

# Created at each opening: an index of an earlier release gets missing indexes.
_INDEXES = f"""
CREATE INDEX IF NOT EXISTS rollout_kind ON rollout ({KIND});
CREATE INDEX IF NOT EXISTS rollout_group ON rollout (gid) WHERE row = 0;
CREATE INDEX IF NOT EXISTS rollout_held ON rollout (state) WHERE state <> 'committed';
CREATE INDEX IF NOT EXISTS rollout_batch_no ON rollout (batch_no, env, staleness)
    WHERE batch_no IS NOT NULL;
CREATE INDEX IF NOT EXISTS rollout_version_min ON rollout (version_min, version_max);
CREATE INDEX IF NOT EXISTS rollout_span ON rollout ({SPAN}) WHERE {SPAN} > 0;
""" + "".join(
    f"CREATE INDEX IF NOT EXISTS rollout_{name} ON rollout ({name}) WHERE {name} IS NOT NULL;"
    for name in ("item", "step", "reward", "n_tokens", "diff_max")
)


# --- the file -----------------------------------------------------------------------

COPIES = "index-*.sqlite"
_numbers = itertools.count(1)


class Index:
    """Index of a run. A single connection writes; each reader opens its own.

    Args:
        path: created if missing; None for an index in memory.
        read_only: the file exists and is never written.
        extra_bytes: bound on samples of drops, and on the copies of earlier runs.

    Raises:
        ConfigError: the path cannot be a file of this process.
    """

    def __init__(
        self, path: Path | None, read_only: bool = False, extra_bytes: int = EXTRA_BYTES
    ) -> None:
        self._path, self._read_only = path, read_only
        self._sample_bytes = self._copied_bytes = extra_bytes // 2
        self._is_older = path is not None and path.stem.startswith("index-")
        self._name = f"/atropos-index-{next(_numbers)}" if path is None else str(path)
        self._vfs = "memdb" if path is None else None
        if read_only:
            return
        if path is not None:
            _make_private(path)
        try:
            self._writer = self._ready_connection()
        except apsw.Error as error:
            if path is None or isinstance(error, (apsw.BusyError, apsw.CantOpenError)):
                raise
            log.warning("%s cannot be used (%s): it is set aside and rebuilt", path, error)
            path.replace(path.with_suffix(".damaged"))
            for end in ("-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
            _make_private(path)
            self._writer = self._ready_connection()

    def _ready_connection(self) -> apsw.Connection:
        connection = self._new_connection(_READ_WRITE)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = NORMAL")  # it can be rebuilt
        [(layout,)] = connection.execute("PRAGMA user_version").fetchall()
        if layout == 0:
            with connection:
                connection.execute(_TABLES)
                connection.execute(f"PRAGMA user_version = {LAYOUT}")
        elif layout != LAYOUT:
            connection.close()
            raise apsw.Error(f"layout {layout}, this release knows {LAYOUT}")
        with connection:
            connection.execute(_INDEXES)
        return connection

    def _new_connection(self, flags: int) -> apsw.Connection:
        connection = apsw.Connection(self._name, flags=flags, vfs=self._vfs)
        connection.set_busy_timeout(BUSY_MS)
        return connection

    def write(self, records: Sequence[Record]) -> None:
        """Write the records in a transaction. For a single thread."""
        with self._writer as connection:
            for record in records:
                record.write(connection)
            if any(isinstance(record, DropFact) for record in records):
                trim_samples(connection, self._sample_bytes)

    def change(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run a statement that writes, as :meth:`write`."""
        self._writer.execute(sql, tuple(values))

    def reader(self) -> apsw.Connection:
        """A connection that reads; the caller closes it."""
        return self._new_connection(
            apsw.SQLITE_OPEN_READONLY if not self._vfs else _READ_WRITE
        )

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a statement."""
        connection = self.reader()
        try:
            return list(connection.execute(sql, tuple(values)))
        finally:
            connection.close()

    def value(self, name: str) -> Any:
        """A value of ``meta``; None if it was never set."""
        rows = self.read("SELECT value FROM meta WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    def set_value(self, name: str, value: Any) -> None:
        self.change("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def close(self) -> None:
        if not self._read_only:
            self._writer.close()

    # --- runs -------------------------------------------------------------------------

    @property
    def begun(self) -> tuple[int, int]:
        """The last group and batch before this run."""
        return msgspec.json.decode(self.value("begun") or "[0, 0]", type=tuple[int, int])

    def begin_run(self, begun: tuple[int, int]) -> None:
        """Set a copy aside, and empty the index except for groups that are not trained on."""
        ended = "SELECT 1 FROM rollout WHERE state IN ('committed', 'dropped')"
        [(some,)] = self.read(f"SELECT EXISTS ({ended}) OR EXISTS (SELECT 1 FROM step)")
        if some and self._path is not None:
            copy = self._path.with_suffix(".copy")
            copy.unlink(missing_ok=True)
            self._writer.execute("VACUUM INTO ?", (str(copy),))
            copy.chmod(0o600)
            copy.replace(self._path.with_name(f"index-{self.begun[0] + 1:012}.sqlite"))
            self._trim_copies(self._path.parent)
        with self._writer as connection:
            for table in re.findall(r"CREATE TABLE (\w+)", _TABLES):
                held = " WHERE state IN ('committed', 'dropped')" * (table == "rollout")
                connection.execute(f"DELETE FROM {table}{held}")
            self.set_value("begun", msgspec.json.encode(begun).decode())

    def _trim_copies(self, folder: Path) -> None:
        held = 0
        for path in sorted(folder.glob(COPIES), reverse=True):
            held += path.stat().st_size
            if held > self._copied_bytes:
                log.warning("%s, of an earlier run, is deleted: see --archive-gb", path)
                path.unlink(missing_ok=True)

    @property
    def run(self) -> RunFacts:
        """The run as last noted; the id of an older run ends with its first group."""
        run = msgspec.json.decode(self.value("run") or "{}", type=RunFacts)
        named = f"{run.run_id[:12]}.{self.begun[0] + 1}".lstrip(".")
        return replace(run, run_id=named, live=False) if self._is_older else run

    def older(self) -> list[Index]:
        """The indexes of earlier runs of this directory, the newest first."""
        if self._path is None or self._is_older:
            return []
        paths = sorted(self._path.parent.glob(COPIES), reverse=True)
        return [Index(path, read_only=True) for path in paths]

    def of_run(self, run_id: str | None) -> Index:
        """The index of a run of this directory; without an id the newest.

        Raises:
            UnknownGroup: unknown run.
        """
        if run_id is None or run_id == self.run.run_id:
            return self
        older = {index.run.run_id: index for index in self.older()}
        if run_id not in older:
            known = ", ".join(older) or "none"
            raise UnknownGroup(f"no run {run_id[:100]} is kept here; earlier ones: {known}")
        return older[run_id]


def _make_private(path: Path) -> None:
    """Make the file for this user alone; the files that SQLite adds get its mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as cause:
        raise ConfigError(
            f"the index of rollouts cannot be {path} ({cause.strerror}: {cause.filename}): move "
            "that away, or choose another --data-dir"
        ) from cause


_READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
