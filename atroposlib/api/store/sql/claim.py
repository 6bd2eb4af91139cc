"""Batches out: which one a claim gets, and what a new one may be made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atroposlib.api.common.records import (
    Batch,
    Chooser,
    Claim,
    GroupState,
    GroupSummary,
    Selection,
)
from atroposlib.api.store.sql.batches import (
    COLUMNS,
    BatchRow,
    as_batch,
    batches,
    dissolve,
    end_open,
    members_of,
    prune,
)
from atroposlib.api.store.sql.run import MIX, document, keep_document
from atroposlib.api.store.sql.schema import (
    MEMBER,
    BatchState,
    Books,
    Connection,
    books,
    env_of,
    for_all,
    member_of,
)


def claim(connection: Connection, claim: Claim, choose: Chooser) -> Batch | str:
    """See :meth:`atroposlib.api.common.store_protocol.Store.claim`."""
    with books(connection) as ledger:
        ledger.head.require_generation(claim.generation)
        for row in _due(batches(connection, "state = 'open'"), claim):
            if row.n_seq != claim.size:
                dissolve(ledger, row)
            elif row.tries >= claim.max_deliveries:
                end_open(ledger, row, BatchState.DEAD, GroupState.DEAD)
            else:
                return _deliver_again(ledger, row, claim)
        return _form(ledger, claim, choose)


def _due(opened: Sequence[BatchRow], claim: Claim) -> list[BatchRow]:
    """Open batches that this claim may get, in the order in which it gets them."""
    same = [row for row in opened if row.claim_id == claim.claim_id is not None]
    free = [
        row
        for row in opened
        if row.lease_until <= claim.now or row.generation != claim.generation
    ]
    return same + [row for row in free if row not in same]


def _deliver_again(ledger: Books, row: BatchRow, claim: Claim) -> Batch:
    if row.generation != claim.generation:
        ledger.note(delivered=ledger.head.delivered + 1)
    repeated = (row.generation, row.claim_id) == (claim.generation, claim.claim_id)
    repeated = repeated and claim.claim_id is not None
    held = replace(
        row,
        since=row.since if repeated else row.epoch + 1,
        generation=claim.generation,
        epoch=row.epoch + 1,
        tries=row.tries + 1,
        claim_id=claim.claim_id,
        lease_until=claim.now + claim.lease_s,
        world_size=claim.world_size,
        ranks=row.ranks if repeated and row.world_size == claim.world_size else "",
    )
    ledger.connection.execute(
        "UPDATE batch SET generation = ?, since = ?, epoch = ?, tries = ?, claim_id = ?, "
        "lease_until = ?, world_size = ?, ranks = ? WHERE no = ?",
        (
            *(held.generation, held.since, held.epoch, held.tries, held.claim_id),
            *(held.lease_until, held.world_size, held.ranks, held.no),
        ),
    )
    return as_batch(held, members_of(ledger.connection, row.no))


def _form(ledger: Books, claim: Claim, choose: Chooser) -> Batch | str:
    connection = ledger.connection
    dropped = 0
    while True:
        ledger.write()  # the tallies tell which sizes the queue holds
        queue = {group.gid: group for group in _queue(connection, claim.size)}
        selection = choose(list(queue.values()), document(connection, MIX))
        stale = [gid for gid in selection.dropped if gid in queue]
        _drop(ledger, stale)
        dropped += len(stale)
        if selection.gids:
            return _form_of(ledger, claim, selection, dropped)
        if not stale:
            return selection.blocked_reason or "no batch can be formed"


def _form_of(ledger: Books, claim: Claim, selection: Selection, dropped: int) -> Batch:
    no = ledger.head.last_batch + 1
    opened = ledger.head.batches_open + 1
    ledger.note(last_batch=no, batches_open=opened, delivered=ledger.head.delivered + 1)
    for_all(
        ledger.connection,
        "UPDATE grp SET state = 'leased', batch_no = ? WHERE gid IN {}",
        selection.gids,
        before=(no,),
    )
    members = members_of(ledger.connection, no)
    ledger.move(members, GroupState.PENDING, GroupState.LEASED)
    made = BatchRow(
        no=no,
        state=BatchState.OPEN.value,
        n_seq=sum(member.n_seq for member in members),
        generation=claim.generation,
        since=1,
        epoch=1,
        tries=1,
        claim_id=claim.claim_id,
        lease_until=claim.now + claim.lease_s,
        world_size=claim.world_size,
        ranks="",
        min_version=selection.min_version,
        dropped=dropped,
    )
    columns = [getattr(made, name) for name in BatchRow.__dataclass_fields__]
    marks = ", ".join("?" * len(columns))
    ledger.connection.execute(f"INSERT INTO batch ({COLUMNS}) VALUES ({marks})", columns)
    if selection.mix is not None:
        keep_document(ledger.connection, MIX, selection.mix)
    return as_batch(made, members)


# Of each kind the oldest groups, no more than could be part of one batch. It walks the
# kinds of the tallies, so a queue of any length costs the same.
_OLDEST = """
WITH kind AS MATERIALIZED (
    SELECT t.env AS env, COALESCE(
        (SELECT h.gid FROM grp h WHERE h.state = 'pending' AND h.env = t.env
         AND h.n_seq = ? ORDER BY h.gid LIMIT 1 OFFSET ?), 9223372036854775807) AS last
    FROM tally t WHERE t.state = 'pending' AND t.n_seq = ?)
SELECT g.gid, g.env, g.n_seq, g.n_tokens, g.version, g.arrived_version
FROM kind JOIN grp g ON g.state = 'pending' AND g.env = kind.env AND g.n_seq = ?
AND g.gid <= kind.last
"""


def _queue(connection: Connection, size: int) -> list[GroupSummary]:
    """What ``choose`` sees, oldest first."""
    queue: list[GroupSummary] = []
    sizes = connection.execute("SELECT DISTINCT n_seq FROM tally WHERE state = 'pending'")
    for (n_seq,) in sizes:
        most = size // max(n_seq, 1)
        if most == 0:
            continue
        for gid, env, *rest in connection.execute(_OLDEST, (n_seq, most - 1, n_seq, n_seq)):
            queue.append(GroupSummary(gid, env_of(env), *rest))
    return sorted(queue, key=lambda group: group.gid)


def _drop(ledger: Books, gids: Sequence[int]) -> None:
    if not gids:
        return
    connection = ledger.connection
    rows = for_all(connection, f"SELECT {MEMBER} FROM grp WHERE gid IN {{}}", gids)
    ledger.move([member_of(row) for row in rows], GroupState.PENDING, GroupState.DROPPED)
    for_all(connection, "UPDATE grp SET state = 'dropped' WHERE gid IN {}", gids)
    for_all(connection, "DELETE FROM payload WHERE gid IN {}", gids)
    prune(ledger)
