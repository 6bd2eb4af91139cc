"""Claim: redelivery of open batches, and new batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

from atroposlib.api.common.records import (
    BatchMember,
    Chooser,
    Claim,
    GroupState,
    GroupSummary,
    LeasedBatch,
    Selection,
)
from atroposlib.api.store.sql.schema import (
    FAIR_SHARE,
    MEMBER,
    BatchState,
    Connection,
    QueueCounters,
    counting,
    env_of,
    for_all,
    keep_document,
    member_of,
    run_document,
)
from atroposlib.errors import StaleGeneration

RECENT_BATCHES = 64  # among which a late repeat of an answered claim is looked for
# Rows kept of ended groups: a retry after this many further groups counts as a new group.
LEDGER_GROUPS = 20_000


@dataclass(frozen=True)
class BatchRow:
    no: int
    state: str
    n_seq: int
    generation: int
    # first epoch of the claim that holds it: its repeats do not fence each other
    first_epoch: int
    epoch: int
    tries: int  # deliveries since it was last acked
    claim_id: str | None
    lease_until: float
    world_size: int
    ranks: str  # ranks that acked this delivery, for example "0,2"
    min_version: int | None
    dropped: int


_NAMES = [field.name for field in fields(BatchRow)]
COLUMNS = ", ".join(_NAMES)
_KEEP = (
    f"INSERT INTO batch ({COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))}) "
    f"ON CONFLICT (no) DO UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in _NAMES)}"
)


def batches(connection: Connection, where: str, *values: int | str) -> list[BatchRow]:
    rows = connection.execute(f"SELECT {COLUMNS} FROM batch WHERE {where} ORDER BY no", values)
    return [BatchRow(*row) for row in rows]


def members_of(connection: Connection, no: int) -> tuple[BatchMember, ...]:
    sql = f"SELECT {MEMBER} FROM groups WHERE batch_no = ? ORDER BY gid"
    return tuple(member_of(row) for row in connection.execute(sql, (no,)))


def as_batch(row: BatchRow, members: tuple[BatchMember, ...]) -> LeasedBatch:
    return LeasedBatch(
        row.no,
        row.epoch,
        row.generation,
        members,
        row.world_size,
        row.min_version,
        row.dropped,
    )


# --- the end of a batch -------------------------------------------------------------


def end_open(counters: QueueCounters, row: BatchRow, state: BatchState) -> None:
    """Move an open batch and its groups to ``state``, which is ACKED or DEAD."""
    transfer_batch(counters, row, GroupState.LEASED, GroupState(state.value))
    counters.add(batches_open=-1, **{f"batches_{state.value}": 1})
    counters.connection.execute(
        "UPDATE batch SET state = ?, tries = 0 WHERE no = ?", (state.value, row.no)
    )


def transfer_batch(
    counters: QueueCounters, row: BatchRow, before: GroupState, after: GroupState
) -> None:
    members = members_of(counters.connection, row.no)
    counters.transfer(members, before, after)
    counters.connection.execute(
        "UPDATE groups SET state = ? WHERE batch_no = ?", (after.value, row.no)
    )


def dissolve(counters: QueueCounters, row: BatchRow, damaged: Sequence[int] = ()) -> None:
    """Delete an open batch; its groups return to their place in the queue, except the
    ``damaged`` groups."""
    members = members_of(counters.connection, row.no)
    sound = [member.gid for member in members if member.gid not in damaged]
    counters.move(sound, GroupState.LEASED, GroupState.PENDING)
    counters.move(damaged, GroupState.LEASED, GroupState.DEAD)
    connection = counters.connection
    connection.execute("UPDATE groups SET batch_no = NULL WHERE batch_no = ?", (row.no,))
    connection.execute("DELETE FROM batch WHERE no = ?", (row.no,))
    counters.add(batches_open=-1)
    uncount_delivery(counters, row)


def uncount_delivery(counters: QueueCounters, row: BatchRow) -> None:
    if row.generation == counters.meta.generation:
        counters.add(delivered=-1)


def prune(counters: QueueCounters) -> None:
    """Delete rows of groups and batches that ended long ago, which bounds the file."""
    counters.connection.execute(
        "DELETE FROM groups WHERE state IN ('committed', 'dropped') AND gid <= ?",
        (counters.meta.last_gid - LEDGER_GROUPS,),
    )
    counters.connection.execute(
        "DELETE FROM batch WHERE state = 'committed' AND no <= ?",
        (counters.meta.last_batch - LEDGER_GROUPS,),
    )


# --- a claim --------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimBatch:
    """Lease a batch, or return the reason why none can be formed.

    In this order: the open batch of the same ``claim_id``; the oldest open batch whose lease
    ended, or that an older generation holds, or that a rewind reopened; a new batch. A repeated
    batch is identical, with ``epoch`` increased by 1. Deliveries to repeats of a ``claim_id`` do
    not fence each other: a late response to the first must not fence the trainer that uses the
    second. An open batch without ``size`` sequences is dissolved (its groups return to their
    place in the queue). A batch delivered ``max_deliveries`` times comes after all open
    batches, with a number after theirs, until the trainer has acked a different batch since it
    registered; if the trainer does not ack it either, it is dead, with its groups.

    For a new batch ``choose`` gets, oldest first, the oldest ``size // n_seq`` groups of each
    kind (env, n_seq); more cannot be part of a batch. Groups that it drops are freed in the
    same transaction. If it dropped groups and chose none, it is called again.
    """

    claim: Claim
    choose: Chooser

    def __call__(self, connection: Connection) -> LeasedBatch | str:
        claim = self.claim
        with counting(connection) as counters:
            counters.meta.require_generation(claim.generation)
            _refuse_answered(counters, claim)
            suspects: list[BatchRow] = []
            for row in _due(batches(connection, "state = 'open'"), claim):
                if row.n_seq != claim.size:
                    dissolve(counters, row)
                elif row.tries > claim.max_deliveries:
                    end_open(counters, row, BatchState.DEAD)
                elif row.tries == claim.max_deliveries and not _is_proven(connection, claim):
                    # Without a proven trainer the last delivery does not count: tries stay at the maximum.
                    row = replace(row, tries=row.tries - 1)
                    if _repeats(row, claim):
                        return _deliver_again(counters, row, claim)
                    suspects.append(row)
                else:
                    _put_last(counters, suspects, claim)
                    return _deliver_again(counters, row, claim)
            formed = _form(counters, claim, self.choose)
            if not suspects or isinstance(formed, LeasedBatch):
                _put_last(counters, suspects, claim)
                return formed
            first = min(suspects, key=lambda row: (row.epoch, -row.no))  # each in turn
            suspects.remove(first)
            _put_last(counters, suspects, claim)
            return _deliver_again(counters, first, claim)


def _put_last(counters: QueueCounters, suspects: Sequence[BatchRow], claim: Claim) -> None:
    """Renumber ``suspects`` behind the later batches, except batches of this trainer:
    it trains batches in the order of their numbers."""
    for row in suspects:
        if row.generation != claim.generation:
            renumber(counters, row)


def renumber(counters: QueueCounters, row: BatchRow) -> None:
    """Give a batch the next number, as a checkpoint's number covers all batches up to it: with
    its own, a commit would free a batch that is trained after it, or a rewind miss it."""
    counters.add(last_batch=1)
    for sql in (
        "UPDATE groups SET batch_no = ? WHERE batch_no = ?",
        "UPDATE batch SET no = ? WHERE no = ?",
    ):
        counters.connection.execute(sql, (counters.meta.last_batch, row.no))


def _refuse_answered(counters: QueueCounters, claim: Claim) -> None:
    """Refuse a claim whose batch is acked: a repeat that came late, for example at another replica.

    A batch leased to it would have no owner, and the next checkpoint would count it as
    trained on.
    """
    if claim.claim_id is None:
        return
    done = "no > ? AND state IN ('acked', 'committed') AND generation = ? AND claim_id = ?"
    recent = counters.meta.last_batch - RECENT_BATCHES
    for row in batches(counters.connection, done, recent, claim.generation, claim.claim_id):
        raise StaleGeneration(
            f"claim {claim.claim_id!r} brought batch {row.no}, which is acked: give each "
            "claim a claim_id of its own"
        )


def _is_proven(connection: Connection, claim: Claim) -> bool:
    """Whether the trainer has acked a batch since it registered. A trainer that crashes with any
    batch must not set all batches aside."""
    done = "generation = ? AND state IN ('acked', 'committed') ORDER BY no DESC LIMIT 1"
    sql = f"SELECT no FROM batch WHERE {done}"
    return bool(connection.execute(sql, (claim.generation,)))


def _due(opened: Sequence[BatchRow], claim: Claim) -> list[BatchRow]:
    """Open batches that this claim may get, in order of preference."""
    same = []
    if claim.claim_id is not None:
        same = [row for row in opened if row.claim_id == claim.claim_id]
    free = [
        row
        for row in opened
        if row.lease_until <= claim.now or row.generation != claim.generation
    ]
    return same + [row for row in free if row not in same]


def _repeats(row: BatchRow, claim: Claim) -> bool:
    same = (row.generation, row.claim_id) == (claim.generation, claim.claim_id)
    return same and claim.claim_id is not None


def _deliver_again(counters: QueueCounters, row: BatchRow, claim: Claim) -> LeasedBatch:
    if row.generation != claim.generation:
        counters.add(delivered=1)
    repeated = _repeats(row, claim)
    held = replace(
        row,
        first_epoch=row.first_epoch if repeated else row.epoch + 1,
        generation=claim.generation,
        epoch=row.epoch + 1,
        tries=row.tries + 1,
        claim_id=claim.claim_id,
        lease_until=claim.now + claim.lease_s,
        world_size=claim.world_size,
        ranks=row.ranks if repeated and row.world_size == claim.world_size else "",
    )
    counters.connection.execute(_KEEP, astuple(held))
    return as_batch(held, members_of(counters.connection, row.no))


def _form(counters: QueueCounters, claim: Claim, choose: Chooser) -> LeasedBatch | str:
    connection = counters.connection
    dropped = 0
    while True:
        counters.write()  # _queue reads the sizes from the counts
        queue = {group.gid: group for group in _queue(connection, claim.size)}
        selection = choose(list(queue.values()), run_document(connection, FAIR_SHARE))
        stale = [gid for gid in selection.dropped if gid in queue]
        drop(counters, stale, GroupState.PENDING)
        dropped += len(stale)
        if selection.gids:
            return _form_of(counters, claim, selection, dropped)
        if not stale:
            return selection.blocked_reason or "no batch can be formed"


def _form_of(
    counters: QueueCounters, claim: Claim, selection: Selection, dropped: int
) -> LeasedBatch:
    counters.add(last_batch=1, batches_open=1, delivered=1)
    no = counters.meta.last_batch
    for_all(
        counters.connection,
        "UPDATE groups SET state = 'leased', batch_no = ? WHERE gid IN {}",
        selection.gids,
        before=(no,),
    )
    members = members_of(counters.connection, no)
    counters.transfer(members, GroupState.PENDING, GroupState.LEASED)
    made = BatchRow(
        no=no,
        state=BatchState.OPEN.value,
        n_seq=sum(member.n_seq for member in members),
        generation=claim.generation,
        first_epoch=1,
        epoch=1,
        tries=1,
        claim_id=claim.claim_id,
        lease_until=claim.now + claim.lease_s,
        world_size=claim.world_size,
        ranks="",
        min_version=selection.min_version,
        dropped=dropped,
    )
    counters.connection.execute(_KEEP, astuple(made))
    if selection.fair_share is not None:
        keep_document(counters.connection, FAIR_SHARE, selection.fair_share)
    return as_batch(made, members)


# The oldest groups of each kind, at most as many as fit into a batch. It reads the kinds
# from the counts, so the cost does not depend on the length of the queue.
_OLDEST = """
WITH kind AS MATERIALIZED (
    SELECT t.env AS env, COALESCE(
        (SELECT h.gid FROM groups h WHERE h.state = 'pending' AND h.env = t.env
         AND h.n_seq = ? ORDER BY h.gid LIMIT 1 OFFSET ?), 9223372036854775807) AS last
    FROM group_counts t WHERE t.state = 'pending' AND t.n_seq = ?)
SELECT g.gid, g.env, g.n_seq, g.n_tokens, g.version, g.arrived_version
FROM kind JOIN groups g ON g.state = 'pending' AND g.env = kind.env AND g.n_seq = ?
AND g.gid <= kind.last
"""


def _queue(connection: Connection, size: int) -> list[GroupSummary]:
    """The groups for ``choose``, oldest first."""
    queue: list[GroupSummary] = []
    sizes = connection.execute(
        "SELECT DISTINCT n_seq FROM group_counts WHERE state = 'pending'"
    )
    for (n_seq,) in sizes:
        most = size // max(n_seq, 1)
        if most == 0:
            continue
        for gid, env, *rest in connection.execute(_OLDEST, (n_seq, most - 1, n_seq, n_seq)):
            queue.append(GroupSummary(gid, env_of(env), *rest))
    return sorted(queue, key=lambda group: group.gid)


@dataclass(frozen=True)
class OlderThan:
    """Number of queued groups with tokens of older policy versions, by (env, n_seq)."""

    version: int

    def __call__(self, connection: Connection) -> dict[tuple[int | None, int], int]:
        rows = connection.execute(
            "SELECT env, n_seq, COUNT(*) FROM groups WHERE state = 'pending' "
            "AND COALESCE(version, arrived_version) < ? GROUP BY env, n_seq",
            (self.version,),
        )
        return {(env_of(env), n_seq): count for env, n_seq, count in rows}


def drop(counters: QueueCounters, gids: Sequence[int], before: GroupState) -> None:
    """Free groups in the state ``before``; they count as dropped."""
    if not gids:
        return
    counters.move(gids, before, GroupState.DROPPED)
    for_all(counters.connection, "DELETE FROM payload WHERE gid IN {}", gids)
    prune(counters)
