"""The run document, admissions, payloads, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence

from atroposlib.api.common.records import (
    HELD,
    Admission,
    GroupState,
    Media,
    RunDocument,
    StoreStats,
    Tally,
    Totals,
    Unanswered,
)
from atroposlib.api.store.sql.schema import (
    LARGEST,
    MEDIA,
    Connection,
    DamagedRow,
    books,
    env_of,
    head_of,
)
from atroposlib.errors import RunChanged

RUN = "run"  # the names of the documents
MIX = "mix"
_EMPTIED = ("payload", "grp", "batch", "tally", "ended", "admission", "document")


def document(connection: Connection, name: str) -> bytes | None:
    rows = connection.execute("SELECT body FROM document WHERE name = ?", (name,))
    return bytes(rows[0][0]) if rows else None


def keep_document(connection: Connection, name: str, body: bytes) -> None:
    connection.execute(
        "INSERT INTO document VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET body = excluded.body",
        (name, body),
    )


# --- the run ------------------------------------------------------------------------


def load(connection: Connection) -> RunDocument:
    head = head_of(connection)
    return RunDocument(head.revision, head.generation, document(connection, RUN))


def save(connection: Connection, body: bytes, revision: int, fence: bool) -> RunDocument:
    with books(connection) as ledger:
        if revision != ledger.head.revision:
            raise RunChanged("the run changed meanwhile: look at it again")
        keep_document(connection, RUN, body)
        ledger.note(revision=revision + 1)
        if fence:
            ledger.note(generation=ledger.head.generation + 1, delivered=0)
        return RunDocument(ledger.head.revision, ledger.head.generation, body)


def reset(connection: Connection) -> RunDocument:
    with books(connection) as ledger:
        for table in _EMPTIED:
            connection.execute(f"DELETE FROM {table}")
        head = ledger.head
        ledger.note(
            revision=head.revision + 1,
            generation=head.generation + 1,
            retained_bytes=0,
            delivered=0,
            batches_open=0,
            batches_acked=0,
            batches_dead=0,
        )
        return RunDocument(ledger.head.revision, ledger.head.generation, None)


def stats(connection: Connection) -> StoreStats:
    head = head_of(connection)
    held = connection.execute("SELECT state, env, n_seq, groups, n_bytes FROM tally")
    ended = connection.execute("SELECT state, groups, sequences FROM ended")
    return StoreStats(
        tallies=tuple(
            Tally(GroupState(state), env_of(env), n_seq, groups, n_bytes)
            for state, env, n_seq, groups, n_bytes in held
        ),
        batches_acked=head.batches_acked,
        delivered=head.delivered,
        revision=head.revision,
        batches_open=head.batches_open,
        batches_dead=head.batches_dead,
        retained_bytes=head.retained_bytes,
        ends={
            GroupState(state): Totals(groups, sequences) for state, groups, sequences in ended
        },
        mix=document(connection, MIX),
    )


# --- groups as they lie -------------------------------------------------------------


def payloads(
    connection: Connection, gids: Sequence[int]
) -> dict[int, tuple[bytes, Media, bytes]]:
    """(digest, media, body) by gid; what is gone or cannot be read is not in it."""
    found = {}
    for gid in gids:
        try:
            rows = connection.execute(_PAYLOAD, (gid,)) if 0 < gid <= LARGEST else []
        except DamagedRow:
            continue
        for digest, media, body in rows:
            if media in MEDIA and isinstance(digest, bytes) and isinstance(body, bytes):
                found[gid] = digest, MEDIA[media], body
    return found


_PAYLOAD = (
    "SELECT digest, media, body FROM payload JOIN grp ON grp.gid = payload.gid "
    "WHERE payload.gid = ?"
)


def unanswered(connection: Connection, since: float) -> list[Unanswered]:
    rows = connection.execute(
        "SELECT gid, env, digest FROM grp WHERE key IS NULL AND arrived >= ? ORDER BY gid",
        (since,),
    )
    return [Unanswered(gid, env_of(env), bytes(digest)) for gid, env, digest in rows]


# --- admission ----------------------------------------------------------------------


def admit(connection: Connection, asked: Admission, budget: int, now: float) -> int:
    connection.execute("DELETE FROM admission WHERE until <= ?", (now,))
    known = connection.execute(
        "SELECT n_seq, until FROM admission WHERE lease_id = ?", (asked.lease_id,)
    )
    if known:
        [(granted, until)] = known
        connection.execute(
            "UPDATE admission SET until = ? WHERE lease_id = ?",
            (max(until, asked.until), asked.lease_id),
        )
        return int(granted)
    room = budget - _accepted(connection) - admitted(connection, now)
    granted = min(max(room, 0), asked.n_seq)
    if granted > 0:
        connection.execute(
            "INSERT INTO admission VALUES (?, ?, ?, ?)",
            (asked.lease_id, asked.env, granted, asked.until),
        )
    return granted


def _accepted(connection: Connection) -> int:
    """Sequences held, acked or committed; what was dropped or died is not trained on."""
    counted = stats(connection)
    held = sum(tally.sequences for tally in counted.tallies if tally.state in HELD)
    trained = (GroupState.ACKED, GroupState.COMMITTED)
    return held + sum(counted.ends.get(end, Totals()).sequences for end in trained)


def release(connection: Connection, lease_id: str) -> bool:
    return bool(
        connection.execute(
            "DELETE FROM admission WHERE lease_id = ? RETURNING lease_id", (lease_id,)
        )
    )


def admitted(connection: Connection, now: float) -> int:
    rows = connection.execute("SELECT n_seq FROM admission WHERE until > ?", (now,))
    return sum(n_seq for (n_seq,) in rows)
