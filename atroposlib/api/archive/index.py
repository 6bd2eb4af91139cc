"""Index of rollouts in SQLite: tables, records, and the insert of each kind of record.

    records --submit--> Indexer --write--> index.sqlite --read--> Explorer

A file holds one run. When the next one begins in the same data directory, a copy is set aside,
``index-<first group>.sqlite``, and the file is emptied.

Rows of ``rollout`` can be rebuilt from the payloads. What participants reported cannot, so a
damaged file is set aside and never deleted.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import apsw
import msgspec

from atroposlib.api.archive.filters import KIND, SPAN
from atroposlib.api.archive.records import (
    BatchFact,
    DropFact,
    EventFact,
    GroupStates,
    NotesFact,
    Record,
    RowFacts,
    RunFacts,
    StepFact,
    WeightFact,
)
from atroposlib.api.codec.row_facts import RowFact
from atroposlib.errors import UnknownGroup

log = logging.getLogger(__name__)

LAYOUT = 1
MAX_EVENTS = 1_000_000
MAX_SAMPLES = 1000  # reports of dropped groups that are kept
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
    at REAL NOT NULL, media TEXT, sample BLOB);
CREATE TABLE weights (
    id INTEGER PRIMARY KEY, server TEXT, version INTEGER, at REAL NOT NULL);
CREATE TABLE event (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, at REAL NOT NULL,
    body TEXT NOT NULL)
"""

# Created at each opening: an index of an earlier release gets those that it lacks.
_INDEXES = f"""
CREATE INDEX IF NOT EXISTS rollout_kind ON rollout ({KIND});
CREATE INDEX IF NOT EXISTS rollout_group ON rollout (gid) WHERE row = 0;
CREATE INDEX IF NOT EXISTS rollout_held ON rollout (state) WHERE state <> 'committed';
CREATE INDEX IF NOT EXISTS rollout_batch_no ON rollout (batch_no, env, staleness)
    WHERE batch_no IS NOT NULL;
CREATE INDEX IF NOT EXISTS rollout_version_min ON rollout (version_min, version_max);
CREATE INDEX IF NOT EXISTS rollout_span ON rollout ({SPAN}) WHERE {SPAN} > 0;
""" + "".join(
    f"CREATE INDEX IF NOT EXISTS rollout_{one} ON rollout ({one}) WHERE {one} IS NOT NULL;"
    for one in ("item", "step", "reward", "n_tokens", "diff_max")
)


# --- inserts ------------------------------------------------------------------------

_ROW = ("gid", "row", "env", "item", "group_id", "batch_no", "arrived_version", "staleness")
_COLUMNS = (*_ROW, "arrived", "state", *RowFact._fields)
_INSERT_ROW = (
    f"INSERT INTO rollout ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    "ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = COALESCE(excluded.{name}, {name})" for name in _COLUMNS[2:])
)


def _rows(connection: apsw.Connection, one: RowFacts) -> None:
    facts = one.facts
    rows = []
    for g, row in enumerate(facts.rows):
        stale = None
        if one.arrived_version is not None and row.version_min is not None:
            stale = max(0, one.arrived_version - row.version_min)
        named = (one.gid, g, one.env, facts.item, facts.group_id, one.batch_no)
        rows.append((*named, one.arrived_version, stale, one.arrived, one.state, *row))
    connection.executemany(_INSERT_ROW, rows)


_ROLLUP = """
INSERT OR REPLACE INTO rollup
SELECT batch_no, COALESCE(env, ''), COUNT(*), SUM(reward), SUM(reward * reward), SUM(n_tokens),
    SUM(n_trained), SUM(turns), SUM(staleness), MAX(diff_max), SUM(outcome = 'ok'),
    SUM(outcome = 'truncated')
FROM rollout WHERE batch_no = ? GROUP BY env
"""


def _batch(connection: apsw.Connection, one: BatchFact) -> None:
    values = tuple(getattr(one, name) for name in BATCH)
    names, marks = ", ".join(BATCH), ", ".join("?" * len(BATCH))
    same = ", ".join(f"{name} = excluded.{name}" for name in BATCH)
    connection.execute(
        f"INSERT INTO batch ({names}) VALUES ({marks}) ON CONFLICT (no) DO UPDATE SET {same}",
        values,
    )
    state = _STATE_OF.get(one.state, one.state)
    connection.execute(
        "UPDATE rollout SET batch_no = ?, state = ?, "
        "step = COALESCE((SELECT step FROM batch WHERE no = ?), step) "
        "WHERE gid IN (SELECT value FROM json_each(?)) AND (state, batch_no) IS NOT (?, ?)",
        (one.no, state, one.no, _json(one.gids), state, one.no),
    )
    connection.execute(_ROLLUP, (one.no,))


BATCH = tuple(field.name for field in fields(BatchFact) if field.name != "gids")
_STATE_OF = {"open": "leased"}  # of a batch -> of its groups


def _states(connection: apsw.Connection, one: GroupStates) -> None:
    sql = "UPDATE rollout SET state = ?, batch_no = COALESCE(?, batch_no) WHERE gid = ?"
    known = [(*now, gid) for gid, now in one.states.items() if now is not None]
    connection.executemany(sql, known)
    gone = [gid for gid, now in one.states.items() if now is None]
    connection.execute(_RESET, (_json(gone),))


_RESET = (
    "UPDATE rollout SET state = CASE state WHEN 'acked' THEN 'committed' ELSE 'dropped' END, "
    "why = CASE state WHEN 'acked' THEN why ELSE 'reset' END "
    "WHERE gid IN (SELECT value FROM json_each(?))"
)


def _note(connection: apsw.Connection, one: NotesFact) -> None:
    row = (one.gid, one.row, one.batch_no, one.advantages, one.logprobs, one.flags)
    connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.execute(
        "UPDATE rollout SET advantage = COALESCE(?, advantage), diff_mean = ?, diff_max = ?, "
        "clipped_share = ?, why = COALESCE(?, why) WHERE gid = ? AND row = ?",
        (one.advantage, one.diff_mean, one.diff_max, one.clipped_share, one.why)
        + (one.gid, one.row),
    )
    if one.diff_max is not None:
        connection.execute(
            "UPDATE rollup SET diff_max = MAX(COALESCE(diff_max, 0), ?) WHERE batch_no = ? "
            "AND env = (SELECT COALESCE(env, '') FROM rollout WHERE gid = ? AND row = ?)",
            (one.diff_max, one.batch_no, one.gid, one.row),
        )


def _step(connection: apsw.Connection, one: StepFact) -> None:
    row = (one.role, one.name, one.step, one.batch_no, one.at, _json(one.values))
    connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?, ?)", row)
    if one.batch_no is not None and one.role == "trainer":
        connection.execute(
            "INSERT INTO batch (no, step) VALUES (?1, ?2) "
            "ON CONFLICT (no) DO UPDATE SET step = excluded.step",
            (one.batch_no, one.step),
        )
        connection.execute(
            "UPDATE rollout SET step = ? WHERE batch_no = ?", (one.step, one.batch_no)
        )


def _drop(connection: apsw.Connection, one: DropFact) -> None:
    row = (one.env, one.reason, one.dropped, one.at, one.media, one.sample)
    connection.execute("INSERT INTO drop_sample VALUES (NULL, ?, ?, ?, ?, ?, ?)", row)
    gid = -connection.last_insert_rowid()  # the sample is shown as a group with this id
    if one.facts is not None:
        _rows(connection, RowFacts(gid, one.env, one.at, None, "dropped", one.facts))
        connection.execute("UPDATE rollout SET why = ? WHERE gid = ?", (one.reason, gid))
    last = gid + MAX_SAMPLES
    connection.execute("DELETE FROM rollout WHERE gid BETWEEN ? AND -1", (last,))
    connection.execute("DELETE FROM drop_sample WHERE id <= ?", (-last,))


_TIME_OF = {"batch": "claimed", "acked": "acked"}  # event -> column of the batch


def _event(connection: apsw.Connection, one: EventFact) -> None:
    connection.execute(
        "INSERT INTO event VALUES (NULL, ?, ?, ?, ?)",
        (one.name, one.kind, one.at, _json(one.values)),
    )
    if connection.last_insert_rowid() % 1000 == 0:
        oldest = connection.last_insert_rowid() - MAX_EVENTS
        connection.execute("DELETE FROM event WHERE id <= ?", (oldest,))
    if (column := _TIME_OF.get(one.kind)) and isinstance(one.values.get("no"), int):
        connection.execute(
            f"INSERT INTO batch (no, {column}) VALUES (?, ?) ON CONFLICT (no) DO UPDATE "
            f"SET {column} = COALESCE({column}, excluded.{column})",
            (one.values["no"], one.at),
        )
    if one.kind == "policy_version":
        _weight(connection, WeightFact(None, one.values.get("version"), one.at))


def _weight(connection: apsw.Connection, one: WeightFact) -> None:
    connection.execute(
        "INSERT INTO weights (server, version, at) VALUES (?, ?, ?)", astuple(one)
    )


_INSERTS: dict[type, Callable[[apsw.Connection, Any], None]] = {
    RowFacts: _rows,
    BatchFact: _batch,
    GroupStates: _states,
    NotesFact: _note,
    StepFact: _step,
    DropFact: _drop,
    EventFact: _event,
    WeightFact: _weight,
}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- the file -----------------------------------------------------------------------

_numbers = itertools.count(1)


class OtherLayout(apsw.Error):
    """The file was written by another release."""


class Index:
    """The index of one run. One connection writes; each reader opens one of its own.

    Args:
        path: created if missing; None for an index in memory.
        read_only: it exists, and nothing is written to it.
    """

    def __init__(self, path: Path | None, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only
        self._is_older = path is not None and path.stem.startswith("index-")
        self._name = f"/atropos-index-{next(_numbers)}" if path is None else str(path)
        self._vfs = "memdb" if path is None else None
        if read_only:
            return
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._writer = self._opened()
        except apsw.Error as error:
            if path is None or isinstance(error, (apsw.BusyError, apsw.CantOpenError)):
                raise
            log.warning("%s cannot be used (%s): it is set aside and rebuilt", path, error)
            path.replace(path.with_suffix(".damaged"))
            for end in ("-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
            self._writer = self._opened()
        if path is not None:
            path.chmod(0o600)

    def _opened(self) -> apsw.Connection:
        connection = self._connected(_READ_WRITE)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = NORMAL")  # it can be rebuilt
        [(layout,)] = connection.execute("PRAGMA user_version").fetchall()
        if layout == 0:
            with connection:
                connection.execute(_TABLES)
                connection.execute(f"PRAGMA user_version = {LAYOUT}")
        elif layout != LAYOUT:
            connection.close()
            raise OtherLayout(f"layout {layout}, this release knows {LAYOUT}")
        with connection:
            connection.execute(_INDEXES)
        return connection

    def _connected(self, flags: int) -> apsw.Connection:
        connection = apsw.Connection(self._name, flags=flags, vfs=self._vfs)
        connection.set_busy_timeout(BUSY_MS)
        return connection

    def write(self, records: Sequence[Record]) -> None:
        """Write the records in one transaction. For one thread."""
        with self._writer as connection:
            for one in records:
                _INSERTS[type(one)](connection, one)

    def change(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run one statement that writes, as :meth:`write`."""
        self._writer.execute(sql, tuple(values))

    def reader(self) -> apsw.Connection:
        """A connection that reads; the caller closes it."""
        return self._connected(apsw.SQLITE_OPEN_READONLY if not self._vfs else _READ_WRITE)

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one statement."""
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
        """Set a copy aside, and empty the index but for groups that are not trained on."""
        ended = "SELECT 1 FROM rollout WHERE state IN ('committed', 'dropped')"
        [(some,)] = self.read(f"SELECT EXISTS ({ended}) OR EXISTS (SELECT 1 FROM step)")
        if some and self._path is not None:
            copy = self._path.with_suffix(".copy")
            copy.unlink(missing_ok=True)
            self._writer.execute("VACUUM INTO ?", (str(copy),))
            copy.chmod(0o600)
            copy.replace(self._path.with_name(f"index-{self.begun[0] + 1:012}.sqlite"))
        with self._writer as connection:
            for table in re.findall(r"CREATE TABLE (\w+)", _TABLES):
                held = " WHERE state IN ('committed', 'dropped')" * (table == "rollout")
                connection.execute(f"DELETE FROM {table}{held}")
            self.set_value("begun", _json(begun))

    @property
    def run(self) -> RunFacts:
        """The run as last noted; the id of an older one ends with its first group."""
        run = msgspec.json.decode(self.value("run") or "{}", type=RunFacts)
        named = f"{run.run_id[:12]}.{self.begun[0] + 1}".lstrip(".")
        return replace(run, run_id=named, live=False) if self._is_older else run

    def older(self) -> list[Index]:
        """The indexes of earlier runs of this directory, the newest first."""
        if self._path is None or self._is_older:
            return []
        found = sorted(self._path.parent.glob("index-*.sqlite"), reverse=True)
        return [Index(path, read_only=True) for path in found]

    def of_run(self, run_id: str | None) -> Index:
        """The index of a run of this directory; without an id the newest.

        Raises:
            UnknownGroup: no such run.
        """
        if run_id is None or run_id == self.run.run_id:
            return self
        older = {one.run.run_id: one for one in self.older()}
        if run_id not in older:
            known = ", ".join(older) or "none"
            raise UnknownGroup(f"no run {run_id[:100]} is kept here; earlier ones: {known}")
        return older[run_id]


_READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
