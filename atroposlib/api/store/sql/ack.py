"""Operations on delivered batches: ack, extend, commit, rewind, discard; and GET /batch.

Operations with a ``generation`` raise StaleGeneration if it is not the current generation, or if
the batch does not exist; operations with an ``epoch`` also if a later delivery owns the batch,
or if it is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace

import msgspec

from atroposlib.api.common.records import (
    BatchTurn,
    Chooser,
    Claim,
    CommitResult,
    DeadBatch,
    GroupState,
    LeasedBatch,
    ReplyState,
    RewindResult,
)
from atroposlib.api.store.sql.claim import (
    BatchRow,
    ClaimBatch,
    as_batch,
    batches,
    dissolve,
    drop,
    end_open,
    members_of,
    prune,
    renumber,
    transfer_batch,
    uncount_delivery,
)
from atroposlib.api.store.sql.schema import (
    MAX_INT64,
    TURN,
    BatchState,
    Connection,
    QueueCounters,
    counting,
    keep_document,
    read_meta,
    run_document,
)
from atroposlib.errors import ConfigError, StaleGeneration

NO_GENERATION = -1  # generation of a batch that a rewind reopened


def _holds(row: BatchRow, generation: int, epoch: int) -> bool:
    return row.generation == generation and row.first_epoch <= epoch <= row.epoch


def _batch_numbered(connection: Connection, no: int, where: str) -> list[BatchRow]:
    """Batch ``no`` if ``where`` holds for it: a list of at most 1 batch."""
    return batches(connection, f"no = ? AND {where}", no) if 0 < no <= MAX_INT64 else []


@dataclass(frozen=True)
class _OfHolder:
    """Operation of the caller that holds delivery ``epoch`` of batch ``no``."""

    no: int
    generation: int
    epoch: int

    def row(self, connection: Connection) -> BatchRow:
        """The batch. StaleGeneration: a later delivery exists."""
        read_meta(connection).require_generation(self.generation)
        rows = _batch_numbered(connection, self.no, "state <> 'dead'")
        if not rows or not _holds(rows[0], self.generation, self.epoch):
            raise StaleGeneration(
                f"delivery {self.epoch} of batch {self.no} is not the latest one"
            )
        return rows[0]


@dataclass(frozen=True)
class Lookup(_OfHolder):
    """The batch as delivered; with ``freed`` also a batch whose payloads may be freed."""

    freed: bool = False

    def __call__(self, connection: Connection) -> LeasedBatch:
        row = self.row(connection)
        if row.state == BatchState.COMMITTED.value and not self.freed:
            raise StaleGeneration(f"batch {self.no} is committed")
        return as_batch(row, members_of(connection, self.no))


@dataclass(frozen=True)
class Extend(_OfHolder):
    """Move the end of a lease."""

    lease_until: float

    def __call__(self, connection: Connection) -> None:
        self.row(connection)
        connection.execute(
            "UPDATE batch SET lease_until = ? WHERE no = ?", (self.lease_until, self.no)
        )


@dataclass(frozen=True)
class Ack(_OfHolder):
    """Record that the batch was trained on. True for the operation that changed it.

    With a ``rank`` the batch is acked after the acks of all ``world_size`` ranks. ``commit`` frees
    the payloads at once, for trainers that never rewind.

    Raises:
        ConfigError: the rank is outside of the world.
    """

    _: KW_ONLY
    rank: int | None = None
    commit: bool = False

    def __call__(self, connection: Connection) -> bool:
        row = self.row(connection)
        if self.rank is not None and not 0 <= self.rank < row.world_size:
            raise ConfigError(f"rank: batch {self.no} has the ranks 0 .. {row.world_size - 1}")
        if row.state != BatchState.OPEN.value:
            return False
        if self.rank is not None:
            ranks = {int(rank) for rank in row.ranks.split(",") if rank} | {self.rank}
            text = ",".join(str(rank) for rank in sorted(ranks))
            connection.execute("UPDATE batch SET ranks = ? WHERE no = ?", (text, self.no))
            if len(ranks) < row.world_size:
                return False
        with counting(connection) as counters:
            end_open(counters, row, BatchState.ACKED)
            if self.commit:
                _commit(counters, row)
                prune(counters)
        return True


MAX_NAMED_OPEN = 100  # open batches that the reply to a commit names


@dataclass(frozen=True)
class Commit:
    """Free all batches up to ``no``, whose effect a durable checkpoint holds.

    Open batches count as acked if their claim had a name; else they stay open.
    """

    no: int
    generation: int

    def __call__(self, connection: Connection) -> CommitResult:
        with counting(connection) as counters:
            # A named claim is repeated until its reply arrives. The reply to an unnamed claim may
            # be lost, and its batch untrained.
            _count_as_acked(counters, self.no, self.generation, "claim_id IS NOT NULL")
            rows = batches(connection, "state = 'acked' AND no <= ?", self.no)
            for row in rows:
                _commit(counters, row)
            prune(counters)
            left = batches(connection, "state = 'open' AND no <= ?", self.no)
            return CommitResult(len(rows), tuple(row.no for row in left[:MAX_NAMED_OPEN]))


@dataclass(frozen=True)
class Rewind:
    """Return to the checkpoint that holds batches up to ``no``; 0 is the beginning.

    Acked and open batches after ``no`` are delivered again, first and in their order; their
    former holders are fenced. Open batches up to ``no`` count as acked. A rewind with the
    ``rewind_id`` of an earlier rewind of its generation changes nothing.
    """

    no: int
    generation: int
    rewind_id: str = ""

    def __call__(self, connection: Connection) -> RewindResult:
        with counting(connection) as counters:
            if self.rewind_id and _is_repeated(counters, self.generation, self.rewind_id):
                [(again,)] = connection.execute(_OPEN_AFTER, (self.no,))
                return RewindResult(again, self._count_of_gone(connection), repeated=True)
            _count_as_acked(counters, self.no, self.generation)
            for row in batches(connection, "state = 'open' AND no > ?", self.no):
                _let_go(counters, row)  # prefetched: it is delivered again in its turn
            rows = batches(connection, "state = 'acked' AND no > ?", self.no)
            for row in rows:
                transfer_batch(counters, row, GroupState.ACKED, GroupState.LEASED)
                _let_go(counters, row)
            counters.add(batches_open=len(rows), batches_acked=-len(rows))
            return RewindResult(replayed=len(rows), gone=self._count_of_gone(connection))

    def _count_of_gone(self, connection: Connection) -> int:
        return After(self.no)(connection)[1]


@dataclass(frozen=True)
class After:
    """The last batch formed, and how many after batch ``no`` are committed."""

    no: int

    def __call__(self, connection: Connection) -> tuple[int, int]:
        gone = "SELECT COUNT(*) FROM batch WHERE state = 'committed' AND no > ?"
        [(n_batches,)] = connection.execute(gone, (self.no,))
        return read_meta(connection).last_batch, n_batches


_OPEN_AFTER = "SELECT COUNT(*) FROM batch WHERE state = 'open' AND no > ?"
_REWINDS = "rewinds"  # document: the ids of the rewinds of a generation
MAX_REWINDS = 64  # newest ids that are kept


def _is_repeated(counters: QueueCounters, generation: int, rewind_id: str) -> bool:
    """Whether the generation has rewound by this id before; if not, it has now."""
    counters.meta.require_generation(generation)
    body = run_document(counters.connection, _REWINDS)
    of, known = msgspec.json.decode(body, type=tuple[int, list[str]]) if body else (0, [])
    if of == generation and rewind_id in known:
        return True
    known = [*(known if of == generation else ()), rewind_id][-MAX_REWINDS:]
    keep_document(counters.connection, _REWINDS, msgspec.json.encode((generation, known)))
    return False


def _let_go(counters: QueueCounters, row: BatchRow) -> None:
    counters.connection.execute(
        "UPDATE batch SET state = 'open', generation = ?, ranks = '', claim_id = NULL "
        "WHERE no = ?",
        (NO_GENERATION, row.no),
    )
    uncount_delivery(counters, row)


def _count_as_acked(
    counters: QueueCounters, no: int, generation: int, which: str = "TRUE"
) -> None:
    """Ack open batches up to ``no``: a checkpoint with ``no`` includes all before it."""
    counters.meta.require_generation(generation)
    if not 0 <= no <= counters.meta.last_batch:
        raise StaleGeneration(
            f"batch {no} was never formed; the last one is {counters.meta.last_batch}"
        )
    for row in batches(counters.connection, f"state = 'open' AND no <= ? AND {which}", no):
        end_open(counters, row, BatchState.ACKED)


def dead_batches(connection: Connection) -> list[DeadBatch]:
    """Batches that were set aside, and 0 for damaged groups of no batch."""
    rows = connection.execute(
        "SELECT COALESCE(batch_no, 0), COUNT(*), SUM(n_seq), SUM(n_bytes) FROM groups "
        "WHERE state = 'dead' GROUP BY batch_no ORDER BY 1"
    )
    return [DeadBatch(*map(int, row)) for row in rows]


@dataclass(frozen=True)
class Revive:
    """Deliver a dead batch again, with the next number. False if ``no`` is no dead batch."""

    no: int

    def __call__(self, connection: Connection) -> bool:
        rows = _batch_numbered(connection, self.no, "state = 'dead'")
        with counting(connection) as counters:
            for row in rows:
                transfer_batch(counters, row, GroupState.DEAD, GroupState.LEASED)
                _let_go(counters, row)
                renumber(counters, row)
            counters.add(batches_open=len(rows), batches_dead=-len(rows))
        return bool(rows)


@dataclass(frozen=True)
class DropDead:
    """Free a dead batch; its groups count as dropped. False if ``no`` is no dead batch."""

    no: int

    def __call__(self, connection: Connection) -> bool:
        no = min(max(self.no, 0), MAX_INT64)
        sql = "SELECT gid FROM groups WHERE state = 'dead' AND COALESCE(batch_no, 0) = ?"
        gids = [gid for (gid,) in connection.execute(sql, (no,))]
        with counting(connection) as counters:
            drop(counters, gids, GroupState.DEAD)
            if gids and no:
                connection.execute(
                    "UPDATE groups SET batch_no = NULL WHERE batch_no = ?", (no,)
                )
                connection.execute("DELETE FROM batch WHERE no = ?", (no,))
                counters.add(batches_dead=-1)
        return bool(gids)


@dataclass(frozen=True)
class Discard:
    """Mark damaged groups of open batch ``no`` DEAD and dissolve the batch, so that its sound
    groups are delivered in a new batch. A batch that is not open is unchanged."""

    no: int
    gids: Sequence[int]

    def __call__(self, connection: Connection) -> None:
        rows = _batch_numbered(connection, self.no, "state = 'open'")
        if not rows:
            return
        members = {member.gid for member in members_of(connection, self.no)}
        if damaged := members & set(self.gids):
            with counting(connection) as counters:
                dissolve(counters, rows[0], sorted(damaged))


def _commit(counters: QueueCounters, row: BatchRow) -> None:
    """Free the payloads of an acked batch; the rows of its groups stay."""
    counters.connection.execute(
        "DELETE FROM payload WHERE gid IN (SELECT gid FROM groups WHERE batch_no = ?)",
        (row.no,),
    )
    transfer_batch(counters, row, GroupState.ACKED, GroupState.COMMITTED)
    counters.connection.execute("UPDATE batch SET state = 'committed' WHERE no = ?", (row.no,))


# --- GET /batch -----------------------------------------------------------------------


def last_turn(connection: Connection) -> BatchTurn | None:
    """The last delivery to GET /batch."""
    body = run_document(connection, TURN)
    return None if body is None else msgspec.json.decode(body, type=BatchTurn)


@dataclass(frozen=True)
class ClaimInTurn:
    """Claim for GET /batch: ack and commit the batch of the last reply if it was sent whole,
    else return that batch again. Also returns the number of a batch that it acked.

    Raises:
        RunChanged: ``revision`` is not that of the run document: read the run again.
    """

    claim: Claim
    choose: Chooser
    revision: int

    def __call__(self, connection: Connection) -> tuple[LeasedBatch | str, int | None]:
        generation, meta = self.claim.generation, read_meta(connection)
        meta.require_generation(generation)
        meta.require_revision(self.revision)
        last, acked = last_turn(connection), None
        if last is None or last.generation != generation:
            last = BatchTurn(generation=generation)
        if last.reply is ReplyState.SENT:
            with suppress(StaleGeneration):  # it dissolved meanwhile
                Ack(last.no, last.generation, last.epoch, commit=True)(connection)
                acked = last.no
            last = msgspec.structs.replace(last, after=last.no, reply=ReplyState.ACKED)
        claim = replace(self.claim, claim_id=f"get-batch-after-{last.after}")
        batch = ClaimBatch(claim, self.choose)(connection)
        if isinstance(batch, LeasedBatch):
            last = msgspec.structs.replace(
                last, no=batch.no, epoch=batch.epoch, reply=ReplyState.SENDING
            )
        keep_document(connection, TURN, msgspec.json.encode(last))
        return batch, acked


@dataclass(frozen=True)
class EndTurn:
    """Record whether a reply to GET /batch was sent whole, until a later GET acts on it."""

    batch: LeasedBatch
    sent: bool

    def __call__(self, connection: Connection) -> None:
        last, batch = last_turn(connection), self.batch
        delivered = (batch.generation, batch.no, batch.epoch)
        if last is None or (last.generation, last.no, last.epoch) != delivered:
            return
        if last.reply is not ReplyState.ACKED:
            reply = ReplyState.SENT if self.sent else ReplyState.LOST
            last = msgspec.structs.replace(last, reply=reply)
            keep_document(connection, TURN, msgspec.json.encode(last))
