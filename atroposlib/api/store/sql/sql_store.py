"""Operations of the store protocol, over the reads and writes of a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar

from atroposlib.api.common.records import (
    HELD,
    AdmissionGrant,
    BufferPolicy,
    Chooser,
    Claim,
    GroupCount,
    GroupState,
    LeasedBatch,
    Media,
    NewGroup,
    Payload,
    RewindResult,
    RunDocument,
    StateTotals,
    Stored,
    StoreStats,
    UnconfirmedPost,
    digest_of,
)
from atroposlib.api.store.sql import ack as ack_queries
from atroposlib.api.store.sql import claim as claim_queries
from atroposlib.api.store.sql import put as put_queries
from atroposlib.api.store.sql.put import NewRow
from atroposlib.api.store.sql.schema import (
    FAIR_SHARE,
    MAX_INT64,
    MEDIA,
    RUN,
    Connection,
    DamagedRow,
    QueueMeta,
    counting,
    document,
    env_of,
    keep_document,
    read_meta,
)
from atroposlib.api.store.sql.writer import Work
from atroposlib.errors import CorruptPayload, RunChanged, StoreFull

T = TypeVar("T")
_GONE = (b"", Media.SAFETENSORS_ZSTD, b"")
_EMPTIED = (
    "payload",
    "groups",
    "batch",
    "group_counts",
    "totals",
    "admission",
    "run_document",
)


class Write(Protocol):
    """Run an operation that changes the tables; ``n_bytes`` of payload come with it."""

    def __call__(self, work: Work[T], n_bytes: int = 0, /) -> T: ...


class Read(Protocol):
    """Run an operation that reads the tables."""

    def __call__(self, work: Work[T], /) -> T: ...


class SqlStore(ABC):
    """See :class:`atroposlib.api.common.store_protocol.Store`.

    Args:
        write: runs an operation under an exclusive write lock; durable when it returns.
        read: runs one on a single snapshot of the tables, without waiting for a writer.
        max_bytes: bound on the payloads of all groups held.
    """

    shared = False

    def __init__(self, write: Write, read: Read, max_bytes: int) -> None:
        self._write, self._read, self.max_bytes = write, read, max_bytes

    @abstractmethod
    def close(self) -> None: ...

    def _body(self, group: NewGroup) -> bytes:
        """The payload as stored in the table; called outside of any transaction."""
        return group.payload

    def _payload(self, media: Media, body: bytes) -> bytes:
        """The payload of a body; the inverse of :meth:`_body`."""
        return body

    def _spare_bytes(self) -> int | None:
        """Free bytes for the files, or None if unknown. Called inside a put."""
        return None

    # --- groups in ----------------------------------------------------------------

    def put(
        self, groups: Sequence[NewGroup], revision: int, complete: BufferPolicy
    ) -> list[Stored]:
        new_rows = [
            NewRow(group, group.digest or digest_of(group.payload), self._body(group))
            for group in groups
        ]
        return self._write(
            lambda c: put_queries.put(c, new_rows, revision, complete, self._require_capacity),
            sum(len(new_row.body) for new_row in new_rows),
        )

    def _require_capacity(self, meta: QueueMeta, new_bytes: int) -> None:
        if meta.retained_bytes + new_bytes > self.max_bytes:
            raise StoreFull(
                f"{meta.retained_bytes} of at most {self.max_bytes} bytes of groups are "
                "kept: train on them, or raise the bound"
            )
        spare = self._spare_bytes()
        if spare is not None and spare < 2 * new_bytes:  # both the log and the file store it
            raise StoreFull("the disk of the store is full up to its reserve: free some space")

    def unconfirmed_posts(self, since: float) -> list[UnconfirmedPost]:
        return self._read(lambda c: _unconfirmed_posts(c, since))

    # --- batches out --------------------------------------------------------------

    def claim(self, claim: Claim, choose: Chooser) -> LeasedBatch | str:
        return self._write(lambda c: claim_queries.claim(c, claim, choose))

    def lookup(self, no: int, generation: int, epoch: int) -> LeasedBatch:
        return self._read(lambda c: ack_queries.lookup(c, no, generation, epoch))

    def read(self, gids: Sequence[int]) -> list[Payload]:
        rows = self._read(lambda c: _payloads(c, gids))
        found: list[Payload] = []
        damaged: list[int] = []
        for gid in gids:  # checked outside of the transaction
            digest, media, body = rows.get(gid, _GONE)
            data = self._payload(media, body)
            if gid in rows and digest_of(data) == digest:
                found.append(Payload(data, media))
            else:
                damaged.append(gid)
        if damaged:
            raise CorruptPayload(damaged)
        return found

    def discard(self, no: int, gids: Sequence[int]) -> None:
        self._write(lambda c: ack_queries.discard(c, no, gids))

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        self._write(lambda c: ack_queries.extend(c, no, generation, epoch, lease_until))

    def ack(
        self, no: int, generation: int, epoch: int, *, rank: int | None, commit: bool
    ) -> bool:
        return self._write(lambda c: ack_queries.ack(c, no, generation, epoch, rank, commit))

    def commit(self, no: int, generation: int) -> int:
        return self._write(lambda c: ack_queries.commit(c, no, generation))

    def rewind(self, no: int, generation: int) -> RewindResult:
        return self._write(lambda c: ack_queries.rewind(c, no, generation))

    # --- admission ----------------------------------------------------------------

    def admit(self, asked: AdmissionGrant, budget: int, now: float) -> int:
        return self._write(lambda c: _admit(c, asked, budget, now))

    def release(self, admission_id: str) -> bool:
        return self._write(lambda c: _release(c, admission_id))

    def admitted(self, now: float) -> int:
        return self._read(lambda c: _admitted(c, now))

    # --- the run ------------------------------------------------------------------

    def load(self) -> RunDocument:
        return self._read(_load)

    def save(self, body: bytes, revision: int, *, fence: bool = False) -> RunDocument:
        return self._write(lambda c: _save(c, body, revision, fence))

    def reset(self) -> RunDocument:
        return self._write(_reset)

    def stats(self) -> StoreStats:
        return self._read(_stats)


# --- the run ------------------------------------------------------------------------


def _load(connection: Connection) -> RunDocument:
    meta = read_meta(connection)
    return RunDocument(meta.revision, meta.generation, document(connection, RUN))


def _save(connection: Connection, body: bytes, revision: int, fence: bool) -> RunDocument:
    with counting(connection) as counters:
        if revision != counters.meta.revision:
            raise RunChanged("the run changed: read it again")
        keep_document(connection, RUN, body)
        counters.set(revision=revision + 1)
        if fence:
            counters.set(generation=counters.meta.generation + 1, delivered=0)
        return RunDocument(counters.meta.revision, counters.meta.generation, body)


def _reset(connection: Connection) -> RunDocument:
    with counting(connection) as counters:
        for table in _EMPTIED:
            connection.execute(f"DELETE FROM {table}")
        meta = counters.meta
        counters.set(
            revision=meta.revision + 1,
            generation=meta.generation + 1,
            retained_bytes=0,
            delivered=0,
            batches_open=0,
            batches_acked=0,
            batches_dead=0,
        )
        return RunDocument(counters.meta.revision, counters.meta.generation, None)


def _stats(connection: Connection) -> StoreStats:
    meta = read_meta(connection)
    held = connection.execute("SELECT state, env, n_seq, groups, n_bytes FROM group_counts")
    ended = connection.execute("SELECT state, groups, sequences FROM totals")
    return StoreStats(
        group_counts=tuple(
            GroupCount(GroupState(state), env_of(env), n_seq, groups, n_bytes)
            for state, env, n_seq, groups, n_bytes in held
        ),
        batches_acked=meta.batches_acked,
        delivered=meta.delivered,
        revision=meta.revision,
        batches_open=meta.batches_open,
        batches_dead=meta.batches_dead,
        retained_bytes=meta.retained_bytes,
        totals={
            GroupState(state): StateTotals(groups, sequences)
            for state, groups, sequences in ended
        },
        fair_share=document(connection, FAIR_SHARE),
    )


# --- stored groups ------------------------------------------------------------------


def _payloads(
    connection: Connection, gids: Sequence[int]
) -> dict[int, tuple[bytes, Media, bytes]]:
    """(digest, media, body) by gid; missing and unreadable groups are left out."""
    found = {}
    for gid in gids:
        try:
            rows = connection.execute(_PAYLOAD, (gid,)) if 0 < gid <= MAX_INT64 else []
        except DamagedRow:
            continue
        for digest, media, body in rows:
            if media in MEDIA and isinstance(digest, bytes) and isinstance(body, bytes):
                found[gid] = digest, MEDIA[media], body
    return found


_PAYLOAD = (
    "SELECT digest, media, body FROM payload JOIN groups ON groups.gid = payload.gid "
    "WHERE payload.gid = ?"
)


def _unconfirmed_posts(connection: Connection, since: float) -> list[UnconfirmedPost]:
    rows = connection.execute(
        "SELECT gid, env, digest FROM groups WHERE key IS NULL AND arrived >= ? ORDER BY gid",
        (since,),
    )
    return [UnconfirmedPost(gid, env_of(env), bytes(digest)) for gid, env, digest in rows]


# --- admission ----------------------------------------------------------------------


def _admit(connection: Connection, asked: AdmissionGrant, budget: int, now: float) -> int:
    connection.execute("DELETE FROM admission WHERE until <= ?", (now,))
    known = connection.execute(
        "SELECT n_seq, until FROM admission WHERE admission_id = ?", (asked.admission_id,)
    )
    if known:
        [(granted, until)] = known
        connection.execute(
            "UPDATE admission SET until = ? WHERE admission_id = ?",
            (max(until, asked.until), asked.admission_id),
        )
        return int(granted)
    room = budget - _accepted(connection) - _admitted(connection, now)
    granted = min(max(room, 0), asked.n_seq)
    if granted > 0:
        connection.execute(
            "INSERT INTO admission VALUES (?, ?, ?, ?)",
            (asked.admission_id, asked.env, granted, asked.until),
        )
    return granted


def _accepted(connection: Connection) -> int:
    """Sequences held, acked or committed; dropped and dead ones are never trained on."""
    counted = _stats(connection)
    held = sum(
        group_count.sequences
        for group_count in counted.group_counts
        if group_count.state in HELD
    )
    trained = (GroupState.ACKED, GroupState.COMMITTED)
    return held + sum(counted.totals.get(end, StateTotals()).sequences for end in trained)


def _release(connection: Connection, admission_id: str) -> bool:
    return bool(
        connection.execute(
            "DELETE FROM admission WHERE admission_id = ? RETURNING admission_id",
            (admission_id,),
        )
    )


def _admitted(connection: Connection, now: float) -> int:
    rows = connection.execute("SELECT n_seq FROM admission WHERE until > ?", (now,))
    return sum(n_seq for (n_seq,) in rows)
