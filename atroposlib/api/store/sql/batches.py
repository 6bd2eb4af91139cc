"""Batches and their ends: ack, commit, rewind, discard. Their beginning is the claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atroposlib.api.common.records import (
    Batch,
    GroupState,
    Member,
    Rewound,
)
from atroposlib.api.common.store_protocol import LEDGER_GROUPS, require_owner
from atroposlib.api.store.sql.schema import (
    LARGEST,
    MEMBER,
    BatchState,
    Books,
    Connection,
    books,
    for_all,
    head_of,
    member_of,
)
from atroposlib.errors import ConfigError, StaleGeneration

NOBODY = -1  # generation of a batch that a rewind reopened: nobody holds it


@dataclass(frozen=True)
class BatchRow:
    """A row of the table ``batch``."""

    no: int
    state: str
    n_seq: int
    generation: int
    since: int  # first epoch of the claim that holds it: its repeats do not fence each other
    epoch: int
    tries: int  # deliveries since it was last acked
    claim_id: str | None
    lease_until: float
    world_size: int
    ranks: str  # that acked this delivery, such as "0,2"
    min_version: int | None
    dropped: int


COLUMNS = ", ".join(BatchRow.__dataclass_fields__)


def batches(connection: Connection, where: str, *values: int | str) -> list[BatchRow]:
    rows = connection.execute(f"SELECT {COLUMNS} FROM batch WHERE {where} ORDER BY no", values)
    return [BatchRow(*row) for row in rows]


def members_of(connection: Connection, no: int) -> tuple[Member, ...]:
    sql = f"SELECT {MEMBER} FROM grp WHERE batch_no = ? ORDER BY gid"
    return tuple(member_of(row) for row in connection.execute(sql, (no,)))


def as_batch(row: BatchRow, members: tuple[Member, ...]) -> Batch:
    return Batch(
        row.no,
        row.epoch,
        row.generation,
        members,
        row.world_size,
        row.min_version,
        row.dropped,
    )


# --- the end of a batch -------------------------------------------------------------


def end_open(ledger: Books, row: BatchRow, state: BatchState, groups: GroupState) -> None:
    """An open batch becomes ``state``, its groups become ``groups``."""
    _move_batch(ledger, row, GroupState.LEASED, groups)
    head = ledger.head
    ledger.note(batches_open=head.batches_open - 1)
    if state is BatchState.DEAD:
        ledger.note(batches_dead=head.batches_dead + 1)
    else:
        ledger.note(batches_acked=head.batches_acked + 1)
    ledger.connection.execute(
        "UPDATE batch SET state = ?, tries = 0 WHERE no = ?", (state.value, row.no)
    )


def _move_batch(ledger: Books, row: BatchRow, before: GroupState, after: GroupState) -> None:
    members = members_of(ledger.connection, row.no)
    ledger.move(members, before, after)
    ledger.connection.execute(
        "UPDATE grp SET state = ? WHERE batch_no = ?", (after.value, row.no)
    )


def dissolve(ledger: Books, row: BatchRow, damaged: Sequence[int] = ()) -> None:
    """The groups of an open batch return to their place in the queue; it never was."""
    members = members_of(ledger.connection, row.no)
    sound = [member for member in members if member.gid not in damaged]
    broken = [member for member in members if member.gid in damaged]
    ledger.move(sound, GroupState.LEASED, GroupState.PENDING)
    ledger.move(broken, GroupState.LEASED, GroupState.DEAD)
    connection = ledger.connection
    for_all(
        connection,
        "UPDATE grp SET state = 'dead' WHERE gid IN {}",
        [member.gid for member in broken],
    )
    connection.execute(
        "UPDATE grp SET state = 'pending' WHERE batch_no = ? AND state = 'leased'", (row.no,)
    )
    connection.execute("UPDATE grp SET batch_no = NULL WHERE batch_no = ?", (row.no,))
    connection.execute("DELETE FROM batch WHERE no = ?", (row.no,))
    ledger.note(batches_open=ledger.head.batches_open - 1)
    _taken_back(ledger, row)


def _taken_back(ledger: Books, row: BatchRow) -> None:
    if row.generation == ledger.head.generation:
        ledger.note(delivered=ledger.head.delivered - 1)


def _commit(ledger: Books, row: BatchRow) -> None:
    """Free the payloads of an acked batch; the ledger rows stay."""
    ledger.connection.execute(
        "DELETE FROM payload WHERE gid IN (SELECT gid FROM grp WHERE batch_no = ?)", (row.no,)
    )
    _move_batch(ledger, row, GroupState.ACKED, GroupState.COMMITTED)
    ledger.connection.execute("UPDATE batch SET state = 'committed' WHERE no = ?", (row.no,))


def prune(ledger: Books) -> None:
    """Forget what ended long ago: the file must not grow for ever."""
    ledger.connection.execute(
        "DELETE FROM grp WHERE state IN ('committed', 'dropped') AND gid <= ?",
        (ledger.head.last_gid - LEDGER_GROUPS,),
    )
    ledger.connection.execute(
        "DELETE FROM batch WHERE state = 'committed' AND no <= ?",
        (ledger.head.last_batch - LEDGER_GROUPS,),
    )


# --- the other verbs ----------------------------------------------------------------


def _owned(connection: Connection, no: int, generation: int, epoch: int) -> BatchRow:
    rows = batches(connection, "no = ?", no) if 0 < no <= LARGEST else []
    row = rows[0] if rows and rows[0].state != BatchState.DEAD.value else None
    owner = (row.generation, row.since, row.epoch) if row else None
    require_owner(no, owner, generation, epoch, head_of(connection).generation)
    return rows[0]


def lookup(connection: Connection, no: int, generation: int, epoch: int) -> Batch:
    row = _owned(connection, no, generation, epoch)
    if row.state == BatchState.COMMITTED.value:  # a checkpoint holds it: no payload is left
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
        ranks = {int(said) for said in row.ranks.split(",") if said} | {rank}
        text = ",".join(str(said) for said in sorted(ranks))
        connection.execute("UPDATE batch SET ranks = ? WHERE no = ?", (text, no))
        if len(ranks) < row.world_size:
            return False
    with books(connection) as ledger:
        end_open(ledger, row, BatchState.ACKED, GroupState.ACKED)
        if commit:
            _commit(ledger, row)
            prune(ledger)
    return True


def commit(connection: Connection, no: int, generation: int) -> int:
    with books(connection) as ledger:
        _count_as_acked(ledger, no, generation)
        rows = batches(connection, "state = 'acked' AND no <= ?", no)
        for row in rows:
            _commit(ledger, row)
        prune(ledger)
        return len(rows)


def rewind(connection: Connection, no: int, generation: int) -> Rewound:
    with books(connection) as ledger:
        _count_as_acked(ledger, no, generation)
        for row in batches(connection, "state = 'open' AND no > ?", no):
            _let_go(ledger, row)  # fetched ahead: it comes again in its turn
        rows = batches(connection, "state = 'acked' AND no > ?", no)
        for row in rows:
            _move_batch(ledger, row, GroupState.ACKED, GroupState.LEASED)
            _let_go(ledger, row)
        head = ledger.head
        ledger.note(
            batches_open=head.batches_open + len(rows),
            batches_acked=head.batches_acked - len(rows),
        )
        gone = "SELECT COUNT(*) FROM batch WHERE state = 'committed' AND no > ?"
        return Rewound(replayed=len(rows), gone=connection.execute(gone, (no,))[0][0])


def _let_go(ledger: Books, row: BatchRow) -> None:
    ledger.connection.execute(
        "UPDATE batch SET state = 'open', generation = ?, ranks = '', claim_id = NULL "
        "WHERE no = ?",
        (NOBODY, row.no),
    )
    _taken_back(ledger, row)


def _count_as_acked(ledger: Books, no: int, generation: int) -> None:
    """Whoever has a checkpoint of batch ``no`` trained on all before it."""
    ledger.head.require_generation(generation)
    if not 0 <= no <= ledger.head.last_batch:
        raise StaleGeneration(
            f"batch {no} was never formed; the last one is {ledger.head.last_batch}"
        )
    for row in batches(ledger.connection, "state = 'open' AND no <= ?", no):
        end_open(ledger, row, BatchState.ACKED, GroupState.ACKED)


def discard(connection: Connection, no: int, gids: Sequence[int]) -> None:
    rows = batches(connection, "no = ? AND state = 'open'", no) if 0 < no <= LARGEST else []
    if not rows:
        return
    damaged = {member.gid for member in members_of(connection, no)} & set(gids)
    if damaged:
        with books(connection) as ledger:
            dissolve(ledger, rows[0], sorted(damaged))
