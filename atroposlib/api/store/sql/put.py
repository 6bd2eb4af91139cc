"""Put: idempotency keys, the bound on bytes, completed buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from atroposlib.api.common.records import (
    BufferPolicy,
    GroupState,
    NewGroup,
    Stored,
)
from atroposlib.api.store.sql.rewriting import UNKNOWN_DIGEST
from atroposlib.api.store.sql.schema import (
    Connection,
    QueueCounters,
    QueueMeta,
    counting,
    env_column,
    for_all,
)
from atroposlib.api.store.sql.writer import JoinedWork
from atroposlib.errors import KeyConflict, StoreError

LOST_REPLY_WINDOW_S = 60.0  # a group without key is repeated this long after a lost reply


class ReplyInDoubt(StoreError):
    """The reply to an equal group without a key is neither confirmed nor known to be lost."""


# Raises StoreFull if the new bytes exceed the capacity.
CapacityCheck = Callable[[QueueMeta, int], None]
# Keeps the payload of a group.
Keep = Callable[[Connection, int, bytes], None]


@dataclass(frozen=True)
class Put(JoinedWork["list[Stored]"]):
    """Single put, as :meth:`atroposlib.api.store.sql.sql_store.Store.put`."""

    groups: Sequence[NewGroup]
    revision: int
    complete: BufferPolicy
    room: CapacityCheck
    keep: Keep
    confirmed: Sequence[int] = ()
    doubt: bool = True

    def __call__(self, connection: Connection) -> list[Stored]:
        with counting(connection) as counters:
            counters.meta.require_revision(self.revision)
            if self.confirmed or self._keyless:
                _forget(connection, self.confirmed, self.groups)
            return _put(counters, self)

    def fits(self, earlier: Sequence[Put]) -> bool:
        """Equal groups without keys in two posts are a repeated post: the second waits."""
        return all(
            (self.revision, self.doubt, self.complete)
            == (put.revision, put.doubt, put.complete)
            and self._keyless.isdisjoint(put._keyless)
            for put in earlier
        )

    def together(self, connection: Connection, later: Sequence[Put]) -> list[list[Stored]]:
        puts = [self, *later]
        answers = replace(
            self,
            groups=[group for put in puts for group in put.groups],
            confirmed=list({gid for put in puts for gid in put.confirmed}),
        )(connection)
        ends = list(accumulate(len(put.groups) for put in puts))
        return [answers[end - len(put.groups) : end] for put, end in zip(puts, ends)]

    @cached_property
    def _keyless(self) -> frozenset[bytes]:
        return frozenset(group.digest for group in self.groups if group.key is None)


@dataclass(frozen=True)
class _Known:
    gid: int
    digest: bytes
    state: GroupState


def _put(counters: QueueCounters, put: Put) -> list[Stored]:
    connection, groups = counters.connection, put.groups
    repeats = _repeats(connection, groups, put.doubt) if put._keyless else {}
    known = _known_groups(connection, groups)
    fresh = [i for i in _places_of_new(groups, known) if i not in repeats]
    if fresh:
        put.room(counters.meta, sum(len(groups[i].payload) for i in fresh))
    answers: list[Stored] = []
    queued: set[int] = set()
    for i, group in enumerate(groups):
        key = group.key
        # A group without a key is recognized by its digest, while its reply is in doubt.
        old = repeats.get(i) if key is None else known.get(key)
        if old is not None:
            answers.append(Stored(old.gid, duplicate=True, state=old.state))
            continue
        new = _insert(counters, group)
        put.keep(connection, new.gid, group.payload)
        if key is not None:
            known[key] = new
        if group.expected is not None:
            queued |= _complete(counters, group.env, group.expected, put.complete)
        answers.append(Stored(new.gid, duplicate=False, state=new.state))
    in_buffers = [
        i
        for i, (group, answer) in enumerate(zip(groups, answers))
        if group.expected is not None or answer.state is GroupState.BUFFERED
    ]
    if in_buffers:
        _note_current(counters, groups, answers, queued, in_buffers)
    return answers


def _known_groups(connection: Connection, groups: Sequence[NewGroup]) -> dict[str, _Known]:
    keys = [group.key for group in groups if group.key is not None]
    rows = for_all(
        connection, "SELECT key, gid, digest, state FROM groups WHERE key IN {}", keys
    )
    return {
        key: _Known(gid, bytes(digest), GroupState(state)) for key, gid, digest, state in rows
    }


def _places_of_new(groups: Sequence[NewGroup], known: dict[str, _Known]) -> list[int]:
    """Places of the groups without a key or with a new key; of a key that occurs twice, the first.

    Raises KeyConflict: a key is known, or occurs before, with other content.
    """
    digests = {key: old.digest for key, old in known.items()}
    places = []
    for i, group in enumerate(groups):
        if group.key is None or group.key not in digests:
            places.append(i)
        if group.key is None:
            continue
        known_digest = digests.setdefault(group.key, group.digest)
        if known_digest not in (group.digest, UNKNOWN_DIGEST):
            raise KeyConflict(f"idempotency key {group.key!r} came with other content")
    return places


_INSERT = "INSERT INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"


def _insert(counters: QueueCounters, group: NewGroup) -> _Known:
    counters.add(last_gid=1)
    gid = counters.meta.last_gid
    state = GroupState.PENDING if group.expected is None else GroupState.BUFFERED
    env = env_column(group.env)
    n_bytes = len(group.payload)
    counters.connection.execute(
        _INSERT,
        (
            gid,
            group.key,
            env,
            group.n_seq,
            group.n_tokens,
            n_bytes,
            group.version,
            group.arrived_version,
            group.arrived,
            group.digest,
            state.value,
        ),
    )
    if group.key is None:
        counters.connection.execute(
            "INSERT INTO unconfirmed VALUES (?, ?, ?, ?, 0)",
            (gid, env, group.digest, group.arrived),
        )
    counters.count(state, env, group.n_seq, n_bytes, +1)
    return _Known(gid, group.digest, state)


# --- groups without a key -------------------------------------------------------------


@dataclass(frozen=True)
class MarkReplies:
    """Record whether the replies to groups without a key arrived."""

    confirmed: Sequence[int] = ()
    lost: Sequence[int] = ()

    def __call__(self, connection: Connection) -> None:
        for_all(connection, "DELETE FROM unconfirmed WHERE gid IN {}", self.confirmed)
        for_all(connection, "UPDATE unconfirmed SET lost = 1 WHERE gid IN {}", self.lost)


def _forget(
    connection: Connection, confirmed: Sequence[int], groups: Sequence[NewGroup]
) -> None:
    """Delete the marks of confirmed groups, and marks older than any window."""
    since = min((group.arrived for group in groups), default=0.0) - LOST_REPLY_WINDOW_S
    # a single statement; no gid is 0
    sql = "DELETE FROM unconfirmed WHERE at < ? OR gid IN {}"
    for_all(connection, sql, [0, *confirmed], before=(since,))


def _repeats(
    connection: Connection, groups: Sequence[NewGroup], doubt: bool
) -> dict[int, _Known]:
    """Stored groups without reply, by the places of the groups that repeat a stored group.

    Raises:
        ReplyInDoubt: with ``doubt``, for a reply of which nothing is known yet.
    """
    repeated: dict[int, _Known] = {}
    taken: set[int] = set()
    for i, group in enumerate(groups):
        if group.key is not None:
            continue
        rows = connection.execute(
            "SELECT unconfirmed.gid, lost, state FROM unconfirmed JOIN groups "
            "ON groups.gid = unconfirmed.gid "
            "WHERE unconfirmed.digest = ? AND unconfirmed.env = ? AND at >= ? ORDER BY unconfirmed.gid",
            (group.digest, env_column(group.env), group.arrived - LOST_REPLY_WINDOW_S),
        )
        open_rows = [row for row in rows if row[0] not in taken]
        for gid, lost, state in open_rows[:1]:
            if doubt and not lost:
                raise ReplyInDoubt("the reply to an equal group is under way: post again")
            taken.add(gid)
            repeated[i] = _Known(gid, group.digest, GroupState(state))
    # The reply to the repeat can be lost as well.
    for gid in taken:
        connection.execute(
            "UPDATE unconfirmed SET lost = 0, at = ? WHERE gid = ?",
            (groups[0].arrived, gid),
        )
    return repeated


# --- buffers ------------------------------------------------------------------------


def _complete(
    counters: QueueCounters, env: int | None, expected: int, complete: BufferPolicy
) -> set[int]:
    """Queue completed groups of the buffer of ``env``; returns their gids."""
    queued: set[int] = set()
    while True:
        counters.write()  # _buffer reads the sizes from the counts
        buffer = _buffer(counters.connection, env_column(env), expected)
        offered = {gid for gid, _ in buffer}
        whole = [gid for gid in complete(buffer, expected) if gid in offered]
        if not whole:
            return queued
        counters.move(whole, GroupState.BUFFERED, GroupState.PENDING)
        queued |= set(whole)


def _buffer(connection: Connection, env: int, expected: int) -> list[tuple[int, int]]:
    """(gid, n_seq), oldest first: of each size at most as many as fit into a group."""
    buffer: list[tuple[int, int]] = []
    sizes = connection.execute(
        "SELECT n_seq FROM group_counts WHERE state = 'buffered' AND env = ?", (env,)
    )
    for (n_seq,) in sizes:
        rows = connection.execute(
            "SELECT gid FROM groups WHERE state = 'buffered' AND env = ? AND n_seq = ? "
            "ORDER BY gid LIMIT ?",
            (env, n_seq, expected // max(n_seq, 1)),
        )
        buffer += [(gid, n_seq) for (gid,) in rows]
    return sorted(buffer)


def _note_current(
    counters: QueueCounters,
    groups: Sequence[NewGroup],
    answers: list[Stored],
    queued: set[int],
    in_buffers: Sequence[int],
) -> None:
    """Set the answers to what holds after the whole put: a later group may complete an earlier one."""
    counters.write()
    rows = counters.connection.execute(
        "SELECT env, n_seq * groups FROM group_counts WHERE state = 'buffered'"
    )
    held: Counter[int] = Counter()
    for env, sequences in rows:
        held[env] += sequences
    for i in in_buffers:
        state = GroupState.PENDING if answers[i].gid in queued else answers[i].state
        buffered = held[env_column(groups[i].env)]
        answers[i] = replace(answers[i], state=state, buffered=buffered)
