"""Records of the index: a frozen dataclass per kind, which any thread submits.

The thread of the index writes the records, each by its own statements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import apsw
import msgspec
import numpy as np

from atroposlib.api.codec.row_facts import GroupFacts, RowFact
from atroposlib.api.common.records import BatchMember
from atroposlib.api.common.run_record import ProcessAccount, RunRecord
from atroposlib.api.store.sql.claim import BatchRow
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import split_frames
from atroposlib.wire.notes import CLIPPED, GroupNotes, unpack_notes

MAX_EVENTS = 1_000_000
MAX_SAMPLES = 1000  # reports of dropped groups that are kept


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run that pages show."""

    run_id: str = ""
    live: bool = False
    state: str | None = None
    tokenizer: str | None = None
    envs: tuple[str, ...] = ()
    # package, version and digest by name
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    incarnation: int = 0  # lives of the trainer
    starts: tuple[int, ...] = ()  # first versions of the last lives
    max_token_len: int = -1
    vocab_size: int | None = None
    accounts: Mapping[str, ProcessAccount] = field(default_factory=dict)
    checkpoint_dir: str = ""  # the trainer's; environments write there too

    @classmethod
    def of(cls, run: RunRecord, live: bool = False) -> RunFacts:
        tokenizer = None if run.trainer is None else run.trainer.tokenizer
        names = tuple(env.wandb_name for env in run.envs)
        sources = {env.wandb_name: env.source for env in run.envs if env.source}
        return cls(
            run_id=run.run_id,
            live=live,
            state=run.state.value,
            tokenizer=tokenizer,
            envs=names,
            sources=sources,
            incarnation=run.incarnation,
            starts=run.starts,
            max_token_len=-1 if run.trainer is None else run.trainer.max_token_len,
            vocab_size=None if run.trainer is None else run.trainer.vocab_size,
            accounts=run.accounts,
            checkpoint_dir="" if run.trainer is None else run.trainer.checkpoint_dir,
        )


class Record(ABC):
    """Part of a transaction of the index."""

    @abstractmethod
    def write(self, connection: apsw.Connection) -> None: ...


@dataclass(frozen=True, slots=True)
class RowFacts(Record):
    """The rows of a group at its arrival."""

    gid: int
    env: str | None
    arrived: float | None
    arrived_version: int | None
    state: str | None
    facts: GroupFacts
    batch_no: int | None = None

    def write(self, connection: apsw.Connection) -> None:
        facts = self.facts
        rows = []
        for g, row in enumerate(facts.rows):
            stale = None
            if self.arrived_version is not None and row.version_min is not None:
                stale = max(0, self.arrived_version - row.version_min)
            named = (self.gid, g, self.env, facts.item, facts.group_id, self.batch_no)
            rows.append((*named, self.arrived_version, stale, self.arrived, self.state, *row))
        connection.executemany(_INSERT_ROW, rows)


@dataclass(frozen=True, slots=True)
class BatchFact(Record):
    """A batch of the ledger as it is now, with its groups."""

    row: BatchRow
    gids: tuple[int, ...]

    def write(self, connection: apsw.Connection) -> None:
        no, state = self.row.no, _STATE_OF.get(self.row.state, self.row.state)
        values = tuple(getattr(self.row, name) for name in BATCH)
        names, marks = ", ".join(BATCH), ", ".join("?" * len(BATCH))
        same = ", ".join(f"{name} = excluded.{name}" for name in BATCH)
        connection.execute(
            f"INSERT INTO batch ({names}) VALUES ({marks}) ON CONFLICT (no) DO UPDATE SET {same}",
            values,
        )
        connection.execute(
            "UPDATE rollout SET batch_no = ?, state = ?, "
            "step = COALESCE((SELECT step FROM batch WHERE no = ?), step) "
            "WHERE gid IN (SELECT value FROM json_each(?)) AND (state, batch_no) IS NOT (?, ?)",
            (no, state, no, _json(self.gids), state, no),
        )
        connection.execute(_ROLLUP, (no,))


@dataclass(frozen=True, slots=True)
class GroupStates(Record):
    """State and batch of groups by gid; None: the ledger has lost the group."""

    states: Mapping[int, tuple[str, int | None] | None]

    def write(self, connection: apsw.Connection) -> None:
        sql = "UPDATE rollout SET state = ?, batch_no = COALESCE(?, batch_no) WHERE gid = ?"
        known = [(*now, gid) for gid, now in self.states.items() if now is not None]
        connection.executemany(sql, known)
        gone = [gid for gid, now in self.states.items() if now is None]
        connection.execute(_RESET, (_json(gone),))


@dataclass(frozen=True, slots=True)
class NotesFact(Record):
    """Notes of the trainer about the rows of a group."""

    gid: int
    batch_no: int
    notes: GroupNotes

    @property
    def rows(self) -> list[int]:
        """The rows with notes of tokens, or with a reason."""
        counts, reasons = self.notes.counts, self.notes.reasons
        return [g for g, reason in enumerate(reasons) if reason is not None or counts[g]]

    def write(self, connection: apsw.Connection) -> None:
        notes = self.notes
        for g in self.rows:
            arrays = advantages, _, flags = notes.of_row(g)
            row = (self.gid, g, self.batch_no, *(array.tobytes() or None for array in arrays))
            connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?, ?, ?, ?)", row)
            known = advantages[~np.isnan(advantages)]
            clipped = flags & CLIPPED != 0
            means = [float(array.mean()) if len(known) else None for array in (known, clipped)]
            differ = notes.diff_mean[g], notes.diff_max[g]
            connection.execute(
                "UPDATE rollout SET advantage = COALESCE(?, advantage), clipped_share = ?, "
                "diff_mean = ?, diff_max = ?, why = COALESCE(?, why) WHERE gid = ? AND row = ?",
                # SQLite stores NaN as NULL.
                (*means, *map(float, differ), notes.reasons[g], self.gid, g),
            )
        if len(known := notes.diff_max[~np.isnan(notes.diff_max)]):
            connection.execute(
                "UPDATE rollup SET diff_max = MAX(COALESCE(diff_max, 0), ?) WHERE batch_no = ? "
                "AND env = (SELECT COALESCE(env, '') FROM rollout WHERE gid = ? AND row = 0)",
                (float(known.max()), self.batch_no, self.gid),
            )


@dataclass(frozen=True, slots=True)
class StepFact(Record):
    """Numbers of a step of the trainer or of an environment."""

    role: str
    name: str
    step: int
    at: float
    values: Mapping[str, float | None]
    batch_no: int | None = None

    def write(self, connection: apsw.Connection) -> None:
        row = (self.role, self.name, self.step, self.batch_no, self.at, _json(self.values))
        if self.role == "trainer" and self.batch_no is None:
            # An evaluation ends after its step, and adds its numbers to the step's.
            connection.execute(
                "INSERT INTO step VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
                "SET body = json_patch(body, excluded.body)",
                row,
            )
            return
        connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?, ?)", row)
        if self.batch_no is not None and self.role == "trainer":
            connection.execute(
                "INSERT INTO batch (no, step) VALUES (?1, ?2) "
                "ON CONFLICT (no) DO UPDATE SET step = excluded.step",
                (self.batch_no, self.step),
            )
            connection.execute(
                "UPDATE rollout SET step = ? WHERE batch_no = ?", (self.step, self.batch_no)
            )


@dataclass(frozen=True, slots=True)
class DropFact(Record):
    """Groups that an environment dropped, and at most a single sample."""

    env: str | None
    reason: str
    dropped: int
    at: float
    sample: bytes | None = None
    facts: GroupFacts | None = None  # facts of the sample

    def write(self, connection: apsw.Connection) -> None:
        connection.execute(
            "INSERT INTO drop_sample (env, reason, dropped, at, sample) VALUES (?, ?, ?, ?, ?)",
            (self.env, self.reason, self.dropped, self.at, self.sample),
        )
        gid = -connection.last_insert_rowid()  # the sample is shown as a group with this id
        if self.facts is not None:
            RowFacts(gid, self.env, self.at, None, "dropped", self.facts).write(connection)
            connection.execute("UPDATE rollout SET why = ? WHERE gid = ?", (self.reason, gid))
        _delete_samples(connection, -gid - MAX_SAMPLES)


def trim_samples(connection: apsw.Connection, most_bytes: int) -> None:
    """Delete the oldest samples of drops beyond ``most_bytes``."""
    [(last,)] = connection.execute(_BEYOND, (most_bytes,)).fetchall()
    if isinstance(last, int):
        _delete_samples(connection, last)


def _delete_samples(connection: apsw.Connection, last: int) -> None:
    connection.execute("DELETE FROM rollout WHERE gid BETWEEN ? AND -1", (-last,))
    connection.execute("DELETE FROM drop_sample WHERE id <= ?", (last,))


_BEYOND = (
    "SELECT MAX(id) FROM (SELECT id, SUM(COALESCE(LENGTH(sample), 0)) OVER (ORDER BY id DESC) "
    "AS held FROM drop_sample) WHERE held > ?"
)


@dataclass(frozen=True, slots=True)
class EventFact(Record):
    name: str  # its id in /events
    kind: str
    at: float
    values: Mapping[str, Any]

    def write(self, connection: apsw.Connection) -> None:
        connection.execute(
            "INSERT INTO event VALUES (NULL, ?, ?, ?, ?)",
            (self.name, self.kind, self.at, _json(self.values)),
        )
        if connection.last_insert_rowid() % 1000 == 0:
            oldest = connection.last_insert_rowid() - MAX_EVENTS
            connection.execute("DELETE FROM event WHERE id <= ?", (oldest,))
        if (column := _TIME_OF.get(self.kind)) and isinstance(self.values.get("no"), int):
            connection.execute(
                f"INSERT INTO batch (no, {column}) VALUES (?, ?) ON CONFLICT (no) DO UPDATE "
                f"SET {column} = COALESCE({column}, excluded.{column})",
                (self.values["no"], self.at),
            )
        if self.kind == "policy_version":
            WeightFact(None, self.values.get("version"), self.at).write(connection)


@dataclass(frozen=True, slots=True)
class WeightFact(Record):
    """The first report of a version by a server, or (``server`` None) that all hold it."""

    server: str | None
    version: int | None
    at: float

    def write(self, connection: apsw.Connection) -> None:
        connection.execute(
            "INSERT INTO weights (server, version, at) VALUES (?, ?, ?)", astuple(self)
        )


# --- statements -----------------------------------------------------------------------

_ROW = ("gid", "row", "env", "item", "group_id", "batch_no", "arrived_version", "staleness")
_COLUMNS = (*_ROW, "arrived", "state", *RowFact._fields)
_INSERT_ROW = (
    f"INSERT INTO rollout ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    "ON CONFLICT DO UPDATE SET "
    + ", ".join(f"{name} = COALESCE(excluded.{name}, {name})" for name in _COLUMNS[2:])
)
_ROLLUP = """
INSERT OR REPLACE INTO rollup
SELECT batch_no, COALESCE(env, ''), COUNT(*), SUM(reward), SUM(reward * reward), SUM(n_tokens),
    SUM(n_trained), SUM(turns), SUM(staleness), MAX(diff_max), SUM(outcome = 'ok'),
    SUM(outcome = 'truncated')
FROM rollout WHERE batch_no = ? GROUP BY env
"""
BATCH = tuple(  # the ledger has these columns, too
    "no state epoch generation tries lease_until world_size ranks n_seq min_version".split()
)
_STATE_OF = {"open": "leased"}  # state of a batch -> state of its groups
_RESET = (
    "UPDATE rollout SET state = CASE state WHEN 'acked' THEN 'committed' ELSE 'dropped' END, "
    "why = CASE state WHEN 'acked' THEN why ELSE 'reset' END "
    "WHERE gid IN (SELECT value FROM json_each(?))"
)
_TIME_OF = {"batch": "claimed", "acked": "acked"}  # event -> column of the batch


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def notes_in(body: bytes, no: int, members: Sequence[BatchMember]) -> list[NotesFact]:
    """The notes in frames, about groups of batch ``no``.

    Raises:
        MalformedBody, InvalidGroup: as of :func:`unpack_notes`, or a group that it has not.
    """
    facts: list[NotesFact] = []
    for frame in split_frames(body, len(members)):
        notes = unpack_notes(frame)
        if notes.member >= len(members):
            raise InvalidGroup("member", "", f"the members are 0 .. {len(members) - 1}")
        member = members[notes.member]
        if len(notes.counts) != member.n_seq:
            raise InvalidGroup("counts", "", f"group {notes.member} has {member.n_seq} rows")
        facts.append(NotesFact(member.gid, no, notes))
    return facts
