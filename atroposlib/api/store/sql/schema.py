"""Connection protocol, tables and counters, common to SQLite and PostgreSQL.

    Store --operation--> put, claim, ack --SQL--> Connection

An operation is a function of a connection inside a transaction with an exclusive write
lock: SQLite has a single writer, PostgreSQL takes a lock per run. So an operation reads, decides
and writes in plain steps, and ids come from a row instead of a sequence. Every difference
of the two databases is in :class:`Dialect` or behind :class:`Connection`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Protocol

import msgspec

from atroposlib.api.common.records import (
    HELD,
    BatchMember,
    GroupCount,
    GroupState,
    StateTotals,
    StoreStats,
)
from atroposlib.errors import RunChanged, StaleGeneration, StoreError

LAYOUT = 5  # up to 4 a group was stored as it was posted, with its media type
NO_ENV = -1  # value in a column; ids of environments are indices of a list
IDS_PER_STATEMENT = 256
RUN = "run"  # names of the documents
FAIR_SHARE = "mix"
TURN = "turn"
BEGUN = "begun"  # last group and batch before the run that the archive shows
# the largest integer of both databases; callers may send larger integers
MAX_INT64 = 2**63 - 1

Row = tuple[Any, ...]


class DamagedRow(StoreError):
    """A row cannot be read; the other rows can."""


class Connection(Protocol):
    """A database connection. ``?`` in the SQL always marks a value."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows of a statement; an empty list for a statement without rows.

        Raises:
            DamagedRow: a row cannot be read, but the remaining rows can.
        """

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run the statement once for each row of values."""


@dataclass(frozen=True)
class Dialect:
    """SQL spellings of a database."""

    integer: str  # 64 bits; SQLite uses its row id only for this spelling
    blob: str
    payload: str = "body {blob} NOT NULL"  # columns of a payload, after its gid
    after_tables: tuple[str, ...] = ()  # statements after the tables are made


SQLITE = Dialect(integer="INTEGER", blob="BLOB")
POSTGRES = Dialect(
    integer="BIGINT",
    blob="BYTEA",
    # Most payloads are already compressed, so the server does not compress payloads.
    after_tables=("ALTER TABLE payload ALTER COLUMN body SET STORAGE EXTERNAL",),
)

# Metadata and payloads live in two tables: a change of state then rewrites a narrow row
# and not the pages of a payload. A store with a payload log keeps only the place of a
# payload in the second table.
_TABLES = """
CREATE TABLE meta (
    id {integer} PRIMARY KEY, layout {integer} NOT NULL,
    revision {integer} NOT NULL, generation {integer} NOT NULL,
    last_gid {integer} NOT NULL, last_batch {integer} NOT NULL,
    retained_bytes {integer} NOT NULL, delivered {integer} NOT NULL,
    batches_open {integer} NOT NULL, batches_acked {integer} NOT NULL,
    batches_dead {integer} NOT NULL);
CREATE TABLE run_document (name TEXT PRIMARY KEY, body {blob} NOT NULL);
CREATE TABLE groups (
    gid {integer} PRIMARY KEY, key TEXT, env {integer} NOT NULL,
    n_seq {integer} NOT NULL, n_tokens {integer} NOT NULL, n_bytes {integer} NOT NULL,
    version {integer}, arrived_version {integer},
    arrived DOUBLE PRECISION NOT NULL, digest {blob} NOT NULL,
    state TEXT NOT NULL, batch_no {integer});
CREATE UNIQUE INDEX groups_key ON groups (key) WHERE key IS NOT NULL;
CREATE INDEX groups_pending ON groups (env, n_seq, gid) WHERE state = 'pending';
CREATE INDEX groups_buffered ON groups (env, n_seq, gid) WHERE state = 'buffered';
CREATE INDEX groups_over ON groups (gid) WHERE state IN ('committed', 'dropped');
CREATE INDEX groups_batch ON groups (batch_no) WHERE batch_no IS NOT NULL;
CREATE INDEX groups_dead ON groups (gid) WHERE state = 'dead';
CREATE TABLE unconfirmed (
    gid {integer} PRIMARY KEY, env {integer} NOT NULL, digest {blob} NOT NULL,
    at DOUBLE PRECISION NOT NULL, lost {integer} NOT NULL);
CREATE INDEX unconfirmed_digest ON unconfirmed (digest);
CREATE TABLE payload (gid {integer} PRIMARY KEY, {payload});
CREATE TABLE batch (
    no {integer} PRIMARY KEY, state TEXT NOT NULL, n_seq {integer} NOT NULL,
    generation {integer} NOT NULL, first_epoch {integer} NOT NULL, epoch {integer} NOT NULL,
    tries {integer} NOT NULL,
    claim_id TEXT, lease_until DOUBLE PRECISION NOT NULL,
    world_size {integer} NOT NULL, ranks TEXT NOT NULL,
    min_version {integer}, dropped {integer} NOT NULL);
CREATE INDEX batch_state ON batch (state, no);
CREATE TABLE group_counts (
    state TEXT NOT NULL, env {integer} NOT NULL, n_seq {integer} NOT NULL,
    groups {integer} NOT NULL, n_bytes {integer} NOT NULL,
    PRIMARY KEY (state, env, n_seq));
CREATE TABLE totals (
    state TEXT PRIMARY KEY, groups {integer} NOT NULL, sequences {integer} NOT NULL);
CREATE TABLE admission (
    admission_id TEXT PRIMARY KEY, env {integer}, n_seq {integer} NOT NULL,
    until DOUBLE PRECISION NOT NULL);
INSERT INTO meta VALUES (1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""


def tables(dialect: Dialect) -> list[str]:
    """The statements that create an empty store, for a single transaction."""
    payload = dialect.payload.format(blob=dialect.blob)
    made = _TABLES.format(integer=dialect.integer, blob=dialect.blob, payload=payload)
    return [statement.strip() for statement in made.split(";")] + list(dialect.after_tables)


# --- counters -----------------------------------------------------------------------


class QueueMeta(msgspec.Struct, frozen=True):
    """The single row of table ``meta``, which every operation reads first."""

    revision: int  # revision of the run document
    generation: int
    last_gid: int
    last_batch: int
    retained_bytes: int
    delivered: int
    batches_open: int
    batches_acked: int
    batches_dead: int

    def require_revision(self, revision: int) -> None:
        if revision != self.revision:
            raise RunChanged("the run changed: read it again")

    def require_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise StaleGeneration(
                f"trainer generation {generation} was replaced by {self.generation}"
            )


_META = QueueMeta.__struct_fields__
_READ_META = f"SELECT {', '.join(_META)} FROM meta"
_WRITE_META = f"UPDATE meta SET {', '.join(f'{name} = ?' for name in _META)}"


def read_meta(connection: Connection) -> QueueMeta:
    return QueueMeta(*connection.execute(_READ_META)[0])


class QueueCounters:
    """Changes of ``meta`` and of the counts during an operation, written at its end.

    With the counts the cost of ``stats`` does not depend on the length of the queue.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._read = self.meta = read_meta(connection)
        # Groups and bytes by (state, env, n_seq); groups and sequences by final state.
        self._held: defaultdict[tuple[str, int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._ended: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def set(self, **changed: int) -> None:
        """Change values of ``meta``."""
        self.meta = msgspec.structs.replace(self.meta, **changed)

    def add(self, **changes: int) -> None:
        """Add to values of ``meta``."""
        self.set(**{name: getattr(self.meta, name) + by for name, by in changes.items()})

    def count(self, state: GroupState, env: int, n_seq: int, n_bytes: int, sign: int) -> None:
        """Count a group that enters (+1) or leaves (-1) a state; ``env`` as in its column."""
        if state in HELD:
            counted, size = self._held[state.value, env, n_seq], n_bytes
        else:
            counted, size = self._ended[state.value], n_seq
        counted[0] += sign
        counted[1] += sign * size
        if keeps_payload(state):
            self.add(retained_bytes=sign * n_bytes)

    def transfer(
        self, members: Sequence[BatchMember], before: GroupState, after: GroupState
    ) -> None:
        """Count members out of ``before`` and into ``after``."""
        for member in members:
            env = env_column(member.env)
            self.count(before, env, member.n_seq, member.n_bytes, -1)
            self.count(after, env, member.n_seq, member.n_bytes, +1)

    def move(self, gids: Sequence[int], before: GroupState, after: GroupState) -> None:
        """Move groups from ``before`` to ``after``, and count both."""
        rows = for_all(self.connection, f"SELECT {MEMBER} FROM groups WHERE gid IN {{}}", gids)
        self.transfer([member_of(row) for row in rows], before, after)
        sql = "UPDATE groups SET state = ? WHERE gid IN {}"
        for_all(self.connection, sql, gids, before=(after.value,))

    def write(self) -> None:
        """Write the changes to the tables; required before the tables are read again."""
        # Equal numbers may enter and leave with different sizes.
        held = [(*kind, *counted) for kind, counted in self._held.items() if any(counted)]
        if held:
            self.connection.execute_many(_ADD_TO_COUNTS, held)
        emptied = [kind for kind, (groups, _) in self._held.items() if groups < 0]
        if emptied:
            self.connection.execute_many(_DROP_EMPTY_COUNTS, emptied)
        ended = [(end, *counted) for end, counted in self._ended.items() if any(counted)]
        if ended:
            self.connection.execute_many(_ADD_TO_TOTALS, ended)
        if self.meta != self._read:
            self.connection.execute(_WRITE_META, msgspec.structs.astuple(self.meta))
            self._read = self.meta
        self._held.clear()
        self._ended.clear()


_ADD_TO_COUNTS = (
    "INSERT INTO group_counts VALUES (?, ?, ?, ?, ?) ON CONFLICT (state, env, n_seq) DO UPDATE "
    "SET groups = group_counts.groups + excluded.groups, n_bytes = group_counts.n_bytes + excluded.n_bytes"
)
_DROP_EMPTY_COUNTS = (
    "DELETE FROM group_counts WHERE state = ? AND env = ? AND n_seq = ? AND groups = 0"
)
_ADD_TO_TOTALS = (
    "INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT (state) DO UPDATE "
    "SET groups = totals.groups + excluded.groups, "
    "sequences = totals.sequences + excluded.sequences"
)


@contextmanager
def counting(connection: Connection) -> Iterator[QueueCounters]:
    """The counters of an operation. After an error they are not written: it rolls back."""
    opened = QueueCounters(connection)
    yield opened
    opened.write()


# --- documents ----------------------------------------------------------------------


def run_document(connection: Connection, name: str) -> bytes | None:
    rows = connection.execute("SELECT body FROM run_document WHERE name = ?", (name,))
    return bytes(rows[0][0]) if rows else None


def keep_document(connection: Connection, name: str, body: bytes) -> None:
    connection.execute(_KEEP_DOCUMENT, (name, body))


def keep_documents(connection: Connection, bodies: Mapping[str, bytes | None]) -> None:
    """Keep some documents; None: delete it."""
    kept = [(name, body) for name, body in bodies.items() if body is not None]
    if kept:
        connection.execute_many(_KEEP_DOCUMENT, kept)
    gone = [name for name, body in bodies.items() if body is None]
    for_all(connection, "DELETE FROM run_document WHERE name IN {}", gone)


_KEEP_DOCUMENT = (
    "INSERT INTO run_document VALUES (?, ?) "
    "ON CONFLICT (name) DO UPDATE SET body = excluded.body"
)


# --- small parts --------------------------------------------------------------------


class BatchState(str, Enum):
    OPEN = "open"
    ACKED = "acked"
    COMMITTED = "committed"
    DEAD = "dead"


def keeps_payload(state: GroupState) -> bool:
    """Whether the payload of a group in ``state`` is kept."""
    return state not in (GroupState.COMMITTED, GroupState.DROPPED)


def env_column(env: int | None) -> int:
    return NO_ENV if env is None else env


def env_of(column: int) -> int | None:
    return None if column == NO_ENV else column


MEMBER = ", ".join(field.name for field in fields(BatchMember))


def member_of(row: Row) -> BatchMember:
    """A row of the columns ``MEMBER``."""
    gid, env, *facts = row
    return BatchMember(gid, env_of(env), *facts)


def for_all(
    connection: Connection, sql: str, items: Sequence[Any], before: Sequence[Any] = ()
) -> list[Row]:
    """Run ``sql`` with ``items`` for ``IN {}``, in portions; ``before`` precedes the items."""
    rows: list[Row] = []
    for start in range(0, len(items), IDS_PER_STATEMENT):
        some = items[start : start + IDS_PER_STATEMENT]
        marks = f"({', '.join('?' * len(some))})"
        rows += connection.execute(sql.format(marks), [*before, *some])
    return rows


def stats(connection: Connection) -> StoreStats:
    meta = read_meta(connection)
    held = connection.execute("SELECT state, env, n_seq, groups, n_bytes FROM group_counts")
    ended = connection.execute("SELECT state, groups, sequences FROM totals")
    return StoreStats(
        group_counts=tuple(
            GroupCount(GroupState(state), env_of(env), *counts) for state, env, *counts in held
        ),
        batches_acked=meta.batches_acked,
        delivered=meta.delivered,
        revision=meta.revision,
        batches_open=meta.batches_open,
        batches_dead=meta.batches_dead,
        retained_bytes=meta.retained_bytes,
        totals={GroupState(state): StateTotals(*counts) for state, *counts in ended},
        fair_share=run_document(connection, FAIR_SHARE),
        batches_uncommitted=connection.execute(_UNCOMMITTED)[0][0],
        dead_bytes=int(connection.execute(_DEAD_BYTES)[0][0]),
        leases=tuple((*row,) for row in connection.execute(_LEASES)),
    )


_UNCOMMITTED = "SELECT COUNT(*) FROM batch WHERE state = 'acked'"
_LEASES = (
    "SELECT no, n_seq, tries, lease_until FROM batch WHERE state = 'open' ORDER BY no LIMIT 16"
)
_DEAD_BYTES = "SELECT COALESCE(SUM(n_bytes), 0) FROM groups WHERE state = 'dead'"
