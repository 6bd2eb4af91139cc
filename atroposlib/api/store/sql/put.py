"""Groups in: keys, the bound, buffers that become whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from atroposlib.api.common.records import Completer, GroupState, NewGroup, Stored
from atroposlib.api.store.sql.schema import (
    MEMBER,
    Books,
    Connection,
    Head,
    books,
    env_column,
    for_all,
    member_of,
)
from atroposlib.errors import KeyConflict, RunChanged

# Given the head and the bytes that are new, raises StoreFull if there is no room.
RoomCheck = Callable[[Head, int], None]


@dataclass(frozen=True)
class Arrival:
    """A group, its digest, and its payload as it shall lie in the table."""

    group: NewGroup
    digest: bytes
    body: bytes


@dataclass(frozen=True)
class _Known:
    gid: int
    digest: bytes
    state: GroupState


def put(
    connection: Connection,
    arrivals: Sequence[Arrival],
    revision: int,
    complete: Completer,
    room: RoomCheck,
) -> list[Stored]:
    """See :meth:`atroposlib.api.common.store_protocol.Store.put`."""
    with books(connection) as ledger:
        if revision != ledger.head.revision:
            raise RunChanged("the run changed meanwhile: look at it again")
        known = _known(connection, arrivals)
        fresh = list(_fresh(arrivals, known))
        if fresh:
            room(ledger.head, sum(len(arrival.group.payload) for arrival in fresh))
        answers: list[Stored] = []
        queued: set[int] = set()
        for arrival in arrivals:
            key = arrival.group.key
            old = None if key is None else known.get(key)
            if old is not None:
                answers.append(Stored(old.gid, duplicate=True, state=old.state))
                continue
            new = _insert(ledger, arrival)
            if key is not None:
                known[key] = new
            if arrival.group.expected is not None:
                queued |= _complete(
                    ledger, arrival.group.env, arrival.group.expected, complete
                )
            answers.append(Stored(new.gid, duplicate=False, state=new.state))
        return _as_it_is_now(ledger, arrivals, answers, queued)


def _known(connection: Connection, arrivals: Sequence[Arrival]) -> dict[str, _Known]:
    keys = [arrival.group.key for arrival in arrivals if arrival.group.key is not None]
    rows = for_all(connection, "SELECT key, gid, digest, state FROM grp WHERE key IN {}", keys)
    return {
        key: _Known(gid, bytes(digest), GroupState(state)) for key, gid, digest, state in rows
    }


def _fresh(arrivals: Iterable[Arrival], known: dict[str, _Known]) -> Iterable[Arrival]:
    """Those that are not in the ledger; of a key that comes twice, the first."""
    digests = {key: old.digest for key, old in known.items()}
    for arrival in arrivals:
        key = arrival.group.key
        if key is None or key not in digests:
            yield arrival
        if key is not None and digests.setdefault(key, arrival.digest) != arrival.digest:
            raise KeyConflict(f"idempotency key {key!r} came with other content")


_INSERT = "INSERT INTO grp VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"


def _insert(ledger: Books, arrival: Arrival) -> _Known:
    group = arrival.group
    gid = ledger.head.last_gid + 1
    ledger.note(last_gid=gid)
    state = GroupState.PENDING if group.expected is None else GroupState.BUFFERED
    env = env_column(group.env)
    n_bytes = len(group.payload)
    ledger.connection.execute(
        _INSERT,
        (
            *(gid, group.key, env, group.n_seq, group.n_tokens, n_bytes, group.media.value),
            *(group.version, group.arrived_version, group.arrived),
            *(arrival.digest, state.value),
        ),
    )
    ledger.connection.execute("INSERT INTO payload VALUES (?, ?)", (gid, arrival.body))
    ledger.count(state, env, group.n_seq, n_bytes, +1)
    return _Known(gid, arrival.digest, state)


# --- buffers ------------------------------------------------------------------------


def _complete(ledger: Books, env: int | None, expected: int, complete: Completer) -> set[int]:
    """Queue what is whole in the buffer of ``env``; the gids that were."""
    queued: set[int] = set()
    while True:
        ledger.write()  # the tallies tell which sizes the buffer holds
        buffer = _buffer(ledger.connection, env_column(env), expected)
        offered = {gid for gid, _ in buffer}
        whole = [gid for gid in complete(buffer, expected) if gid in offered]
        if not whole:
            return queued
        rows = for_all(ledger.connection, f"SELECT {MEMBER} FROM grp WHERE gid IN {{}}", whole)
        ledger.move([member_of(row) for row in rows], GroupState.BUFFERED, GroupState.PENDING)
        for_all(ledger.connection, "UPDATE grp SET state = 'pending' WHERE gid IN {}", whole)
        queued |= set(whole)


def _buffer(connection: Connection, env: int, expected: int) -> list[tuple[int, int]]:
    """(gid, n_seq), oldest first: of each size no more than could be part of one group."""
    buffer: list[tuple[int, int]] = []
    sizes = connection.execute(
        "SELECT n_seq FROM tally WHERE state = 'buffered' AND env = ?", (env,)
    )
    for (n_seq,) in sizes:
        rows = connection.execute(
            "SELECT gid, n_seq FROM grp WHERE state = 'buffered' AND env = ? AND n_seq = ? "
            "ORDER BY gid LIMIT ?",
            (env, n_seq, expected // max(n_seq, 1)),
        )
        buffer += [(gid, rows_n_seq) for gid, rows_n_seq in rows]
    return sorted(buffer)


def _as_it_is_now(
    ledger: Books, arrivals: Sequence[Arrival], answers: list[Stored], queued: set[int]
) -> list[Stored]:
    """The answers after all of the put: a later group may have completed an earlier one."""
    ledger.write()
    rows = ledger.connection.execute(
        "SELECT env, n_seq * groups FROM tally WHERE state = 'buffered'"
    )
    held: dict[int, int] = {}
    for env, sequences in rows:
        held[env] = held.get(env, 0) + sequences
    return [
        replace(
            answer,
            state=GroupState.PENDING if answer.gid in queued else answer.state,
            buffered=held.get(env_column(arrival.group.env), 0),
        )
        for arrival, answer in zip(arrivals, answers)
    ]
