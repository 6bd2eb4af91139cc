"""Records of the index: a frozen dataclass per kind, which any thread submits.

The thread of the index writes them, each by its own statements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import apsw
import msgspec
import numpy as np

from atroposlib.api.codec.row_facts import GroupFacts, RowFact
from atroposlib.api.common.records import BatchMember, RunRecord
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import split_frames
from atroposlib.wire.notes import CLIPPED, GroupNotes, unpack_notes

MAX_EVENTS = 1_000_000
MAX_SAMPLES = 1000  # reports of dropped groups that are kept


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is shown of a run itself."""

    run_id: str = ""
    live: bool = False
    state: str | None = None
    tokenizer: str | None = None
    envs: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: RunRecord, live: bool = False) -> RunFacts:
        tokenizer = None if run.trainer is None else run.trainer.tokenizer
        names = tuple(env.wandb_name for env in run.envs)
        return cls(run.run_id, live, run.state.value, tokenizer, names)


class Record(ABC):
    """What a transaction of the index writes, one behind the other."""

    @abstractmethod
    def write(self, connection: apsw.Connection) -> None: ...


@dataclass(frozen=True, slots=True)
class RowFacts(Record):
    """The rows of one group at its arrival."""

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

    no: int
    state: str
    epoch: int
    generation: int
    tries: int
    lease_until: float
    world_size: int
    ranks: str  # that acked, for example "0,2"
    n_seq: int
    min_version: int | None
    gids: tuple[int, ...]

    def write(self, connection: apsw.Connection) -> None:
        values = tuple(getattr(self, name) for name in BATCH)
        names, marks = ", ".join(BATCH), ", ".join("?" * len(BATCH))
        same = ", ".join(f"{name} = excluded.{name}" for name in BATCH)
        connection.execute(
            f"INSERT INTO batch ({names}) VALUES ({marks}) ON CONFLICT (no) DO UPDATE SET {same}",
            values,
        )
        state = _STATE_OF.get(self.state, self.state)
        connection.execute(
            "UPDATE rollout SET batch_no = ?, state = ?, "
            "step = COALESCE((SELECT step FROM batch WHERE no = ?), step) "
            "WHERE gid IN (SELECT value FROM json_each(?)) AND (state, batch_no) IS NOT (?, ?)",
            (self.no, state, self.no, _json(self.gids), state, self.no),
        )
        connection.execute(_ROLLUP, (self.no,))


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
    """What the trainer noted about one row. Arrays cover its trained tokens, little-endian."""

    gid: int
    row: int
    batch_no: int
    advantages: bytes | None = None  # F32
    logprobs: bytes | None = None  # F16, of the policy before the step
    flags: bytes | None = None  # U8: 1 clipped, 2 version-masked, 4 filtered
    advantage: float | None = None  # mean
    diff_mean: float | None = None
    diff_max: float | None = None
    clipped_share: float | None = None
    why: str | None = None

    def write(self, connection: apsw.Connection) -> None:
        row = (self.gid, self.row, self.batch_no, self.advantages, self.logprobs, self.flags)
        connection.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?, ?, ?, ?)", row)
        connection.execute(
            "UPDATE rollout SET advantage = COALESCE(?, advantage), diff_mean = ?, diff_max = ?, "
            "clipped_share = ?, why = COALESCE(?, why) WHERE gid = ? AND row = ?",
            (self.advantage, self.diff_mean, self.diff_max, self.clipped_share, self.why)
            + (self.gid, self.row),
        )
        if self.diff_max is not None:
            connection.execute(
                "UPDATE rollup SET diff_max = MAX(COALESCE(diff_max, 0), ?) WHERE batch_no = ? "
                "AND env = (SELECT COALESCE(env, '') FROM rollout WHERE gid = ? AND row = ?)",
                (self.diff_max, self.batch_no, self.gid, self.row),
            )


@dataclass(frozen=True, slots=True)
class StepFact(Record):
    """Numbers of one step of the trainer or of an environment."""

    role: str
    name: str
    step: int
    at: float
    values: Mapping[str, float | None]
    batch_no: int | None = None

    def write(self, connection: apsw.Connection) -> None:
        row = (self.role, self.name, self.step, self.batch_no, self.at, _json(self.values))
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
    """Groups that an environment dropped, and at most one of them."""

    env: str | None
    reason: str
    dropped: int
    at: float
    media: str | None = None
    sample: bytes | None = None
    facts: GroupFacts | None = None  # of the sample

    def write(self, connection: apsw.Connection) -> None:
        row = (self.env, self.reason, self.dropped, self.at, self.media, self.sample)
        connection.execute("INSERT INTO drop_sample VALUES (NULL, ?, ?, ?, ?, ?, ?)", row)
        gid = -connection.last_insert_rowid()  # the sample is shown as a group with this id
        if self.facts is not None:
            RowFacts(gid, self.env, self.at, None, "dropped", self.facts).write(connection)
            connection.execute("UPDATE rollout SET why = ? WHERE gid = ?", (self.reason, gid))
        last = gid + MAX_SAMPLES
        connection.execute("DELETE FROM rollout WHERE gid BETWEEN ? AND -1", (last,))
        connection.execute("DELETE FROM drop_sample WHERE id <= ?", (-last,))


@dataclass(frozen=True, slots=True)
class EventFact(Record):
    """An event of the API."""

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
BATCH = tuple(field.name for field in fields(BatchFact) if field.name != "gids")
_STATE_OF = {"open": "leased"}  # of a batch -> of its groups
_RESET = (
    "UPDATE rollout SET state = CASE state WHEN 'acked' THEN 'committed' ELSE 'dropped' END, "
    "why = CASE state WHEN 'acked' THEN why ELSE 'reset' END "
    "WHERE gid IN (SELECT value FROM json_each(?))"
)
_TIME_OF = {"batch": "claimed", "acked": "acked"}  # event -> column of the batch


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- notes of the trainer ------------------------------------------------------------


def notes_in(body: bytes, no: int, members: Sequence[BatchMember]) -> list[NotesFact]:
    """The notes in frames, about groups of batch ``no``.

    Raises:
        MalformedBody, InvalidGroup: as of :func:`unpack_notes`, or a group that it has not.
    """
    found: list[NotesFact] = []
    for frame in split_frames(body, len(members)):
        notes = unpack_notes(frame)
        if notes.member >= len(members):
            raise InvalidGroup("member", "", f"the members are 0 .. {len(members) - 1}")
        member = members[notes.member]
        if len(notes.counts) != member.n_seq:
            raise InvalidGroup("counts", "", f"group {notes.member} has {member.n_seq} rows")
        found += _rows(notes, member.gid, no)
    return found


def _rows(notes: GroupNotes, gid: int, no: int) -> Iterator[NotesFact]:
    for g, reason in enumerate(notes.reasons):
        advantages, logprobs, flags = notes.of_row(g)
        if reason is None and not len(flags):
            continue
        known = advantages[~np.isnan(advantages)]
        yield NotesFact(
            gid=gid,
            row=g,
            batch_no=no,
            advantages=advantages.tobytes() or None,
            logprobs=logprobs.tobytes() or None,
            flags=flags.tobytes() or None,
            advantage=float(known.mean()) if len(known) else None,
            diff_mean=_known(notes.diff_mean[g]),
            diff_max=_known(notes.diff_max[g]),
            clipped_share=float((flags & CLIPPED != 0).mean()) if len(known) else None,
            why=reason,
        )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
