"""SQL of ack, extend, commit, rewind and discard, and of GET /batch, which acks and claims."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

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
    as_batch,
    batches,
    claim,
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
    document,
    keep_document,
    read_meta,
)
from atroposlib.errors import ConfigError, StaleGeneration

NO_GENERATION = -1  # generation of a batch that a rewind reopened


def _owned(connection: Connection, no: int, generation: int, epoch: int) -> BatchRow:
    """The batch, for the caller that holds it."""
    read_meta(connection).require_generation(generation)
    rows = batches(connection, "no = ? AND state <> 'dead'", no) if 0 < no <= MAX_INT64 else []
    if not rows or not _holds(rows[0], generation, epoch):
        raise StaleGeneration(f"delivery {epoch} of batch {no} is not the latest one")
    return rows[0]


def _holds(row: BatchRow, generation: int, epoch: int) -> bool:
    return row.generation == generation and row.first_epoch <= epoch <= row.epoch


def lookup(
    connection: Connection, no: int, generation: int, epoch: int, freed: bool = False
) -> LeasedBatch:
    row = _owned(connection, no, generation, epoch)
    if row.state == BatchState.COMMITTED.value and not freed:
        raise StaleGeneration(f"batch {no} is committed")
    return as_batch(row, members_of(connection, no))


def extend(
    connection: Connection, no: int, generation: int, epoch: int, lease_until: float
) -> None:
    _owned(connection, no, generation, epoch)
    connection.execute("UPDATE batch SET lease_until = ? WHERE no = ?", (lease_until, no))


def ack(
    connection: Connection,
    no: int,
    generation: int,
    epoch: int,
    rank: int | None,
    commit: bool,
) -> bool:
    row = _owned(connection, no, generation, epoch)
    if rank is not None and not 0 <= rank < row.world_size:
        raise ConfigError(f"rank: batch {no} has the ranks 0 .. {row.world_size - 1}")
    if row.state != BatchState.OPEN.value:
        return False
    if rank is not None:
        ranks = {int(one) for one in row.ranks.split(",") if one} | {rank}
        text = ",".join(str(one) for one in sorted(ranks))
        connection.execute("UPDATE batch SET ranks = ? WHERE no = ?", (text, no))
        if len(ranks) < row.world_size:
            return False
    with counting(connection) as counters:
        end_open(counters, row, BatchState.ACKED)
        if commit:
            _commit(counters, row)
            prune(counters)
    return True


MAX_NAMED_OPEN = 100  # of the batches that a commit leaves open, in its reply


def commit(connection: Connection, no: int, generation: int) -> CommitResult:
    with counting(connection) as counters:
        # A named claim is repeated until its reply arrives. The reply to an unnamed one may be
        # lost, and its batch untrained.
        _count_as_acked(counters, no, generation, "claim_id IS NOT NULL")
        rows = batches(connection, "state = 'acked' AND no <= ?", no)
        for row in rows:
            _commit(counters, row)
        prune(counters)
        left = batches(connection, "state = 'open' AND no <= ?", no)
        return CommitResult(len(rows), tuple(row.no for row in left[:MAX_NAMED_OPEN]))


def rewind(
    connection: Connection, no: int, generation: int, rewind_id: str = ""
) -> RewindResult:
    with counting(connection) as counters:
        if rewind_id and _is_repeated(counters, generation, rewind_id):
            [(again,)] = connection.execute(_OPEN_AFTER, (no,))
            return RewindResult(again, after(connection, no)[1], repeated=True)
        _count_as_acked(counters, no, generation)
        for row in batches(connection, "state = 'open' AND no > ?", no):
            _let_go(counters, row)  # prefetched: it is delivered again in its turn
        rows = batches(connection, "state = 'acked' AND no > ?", no)
        for row in rows:
            transfer_batch(counters, row, GroupState.ACKED, GroupState.LEASED)
            _let_go(counters, row)
        counters.add(batches_open=len(rows), batches_acked=-len(rows))
        return RewindResult(replayed=len(rows), gone=after(connection, no)[1])


_OPEN_AFTER = "SELECT COUNT(*) FROM batch WHERE state = 'open' AND no > ?"
_REWINDS = "rewinds"  # document: the ids of the rewinds of a generation
MAX_REWINDS = 64  # of them, the newest


def _is_repeated(counters: QueueCounters, generation: int, rewind_id: str) -> bool:
    """Whether the generation has rewound by this id before; if not, it has now."""
    counters.meta.require_generation(generation)
    body = document(counters.connection, _REWINDS)
    of, known = msgspec.json.decode(body, type=tuple[int, list[str]]) if body else (0, [])
    if of == generation and rewind_id in known:
        return True
    known = [*(known if of == generation else ()), rewind_id][-MAX_REWINDS:]
    keep_document(counters.connection, _REWINDS, msgspec.json.encode((generation, known)))
    return False


def after(connection: Connection, no: int) -> tuple[int, int]:
    gone = "SELECT COUNT(*) FROM batch WHERE state = 'committed' AND no > ?"
    return read_meta(connection).last_batch, connection.execute(gone, (no,))[0][0]


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


def dead(connection: Connection) -> list[DeadBatch]:
    rows = connection.execute(
        "SELECT COALESCE(batch_no, 0), COUNT(*), SUM(n_seq), SUM(n_bytes) FROM groups "
        "WHERE state = 'dead' GROUP BY batch_no ORDER BY 1"
    )
    return [DeadBatch(*map(int, row)) for row in rows]


def revive(connection: Connection, no: int) -> bool:
    rows = batches(connection, "no = ? AND state = 'dead'", no) if 0 < no <= MAX_INT64 else []
    with counting(connection) as counters:
        for row in rows:
            transfer_batch(counters, row, GroupState.DEAD, GroupState.LEASED)
            _let_go(counters, row)
            renumber(counters, row)
        counters.add(batches_open=len(rows), batches_dead=-len(rows))
    return bool(rows)


def drop_dead(connection: Connection, no: int) -> bool:
    sql = "SELECT gid FROM groups WHERE state = 'dead' AND COALESCE(batch_no, 0) = ?"
    gids = [gid for (gid,) in connection.execute(sql, (min(max(no, 0), MAX_INT64),))]
    with counting(connection) as counters:
        drop(counters, gids, GroupState.DEAD)
        if gids and no:
            connection.execute("UPDATE groups SET batch_no = NULL WHERE batch_no = ?", (no,))
            connection.execute("DELETE FROM batch WHERE no = ?", (no,))
            counters.add(batches_dead=-1)
    return bool(gids)


def discard(connection: Connection, no: int, gids: Sequence[int]) -> None:
    rows = batches(connection, "no = ? AND state = 'open'", no) if 0 < no <= MAX_INT64 else []
    if not rows:
        return
    damaged = {member.gid for member in members_of(connection, no)} & set(gids)
    if damaged:
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


def turn(connection: Connection) -> BatchTurn | None:
    body = document(connection, TURN)
    return None if body is None else msgspec.json.decode(body, type=BatchTurn)


def claim_in_turn(
    connection: Connection, asked: Claim, choose: Chooser, revision: int
) -> tuple[LeasedBatch | str, int | None]:
    """See :meth:`atroposlib.api.store.sql.sql_store.Store.claim_in_turn`."""
    meta = read_meta(connection)
    meta.require_generation(asked.generation)
    meta.require_revision(revision)
    last, acked = turn(connection), None
    if last is None or last.generation != asked.generation:
        last = BatchTurn(generation=asked.generation)
    if last.reply is ReplyState.SENT:
        with suppress(StaleGeneration):  # it dissolved meanwhile
            ack(connection, last.no, last.generation, last.epoch, None, commit=True)
            acked = last.no
        last = msgspec.structs.replace(last, after=last.no, reply=ReplyState.ACKED)
    got = claim(connection, replace(asked, claim_id=f"get-batch-after-{last.after}"), choose)
    if isinstance(got, LeasedBatch):
        last = msgspec.structs.replace(
            last, no=got.no, epoch=got.epoch, reply=ReplyState.SENDING
        )
    keep_document(connection, TURN, msgspec.json.encode(last))
    return got, acked


def end_turn(connection: Connection, batch: LeasedBatch, sent: bool) -> None:
    last, now = turn(connection), ReplyState.SENT if sent else ReplyState.LOST
    mine = (batch.generation, batch.no, batch.epoch)
    if last is None or (last.generation, last.no, last.epoch) != mine:
        return
    if last.reply is not ReplyState.ACKED:
        keep_document(
            connection, TURN, msgspec.json.encode(msgspec.structs.replace(last, reply=now))
        )
