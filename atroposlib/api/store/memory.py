"""A store that ends with the process: for tests, and for runs that need no second life."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from atroposlib.api.records import (
    Batch,
    Chooser,
    GroupState,
    GroupSummary,
    NewGroup,
    Stored,
    StoreStats,
    Tally,
)
from atroposlib.api.store.base import checked, digest_of, require_owner
from atroposlib.errors import Fenced, KeyConflict


@dataclass
class _Group:
    summary: GroupSummary
    state: GroupState
    digest: bytes
    payload: bytes
    key: str | None


@dataclass
class _Batch:
    gids: tuple[int, ...]
    n_seq: int
    generation: int
    epoch: int
    lease_until: float
    acked: bool = False


class MemoryStore:
    """See :class:`atroposlib.api.store.base.Store`; one lock makes every method atomic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = 0
        self._last_gid = 0
        self._last_batch = 0
        self._forget()

    def _forget(self) -> None:
        self._groups: dict[int, _Group] = {}  # all but the ACKED ones
        self._acked: dict[int, bytes] = {}  # digests, where a key may still come again
        self._queue: dict[int, GroupSummary] = {}  # the PENDING ones
        self._keys: dict[str, int] = {}
        self._batches: dict[int, _Batch] = {}
        self._documents: dict[str, bytes] = {}

    def put(self, groups: Sequence[NewGroup]) -> list[Stored]:
        digests = [digest_of(group.payload) for group in groups]
        with self._lock:
            self._refuse_conflicts(groups, digests)
            return [self._put_one(g, digest) for g, digest in zip(groups, digests)]

    def _refuse_conflicts(self, groups: Sequence[NewGroup], digests: Sequence[bytes]) -> None:
        known: dict[str, bytes] = {}
        for group, digest in zip(groups, digests):
            if group.key is None:
                continue
            if group.key in self._keys:
                known[group.key] = self._digest(self._keys[group.key])
            if known.setdefault(group.key, digest) != digest:
                raise KeyConflict(f"idempotency key {group.key!r} came with other content")

    def _digest(self, gid: int) -> bytes:
        return self._acked[gid] if gid in self._acked else self._groups[gid].digest

    def _put_one(self, new: NewGroup, digest: bytes) -> Stored:
        if new.key is not None and new.key in self._keys:
            gid = self._keys[new.key]
            state = GroupState.ACKED if gid in self._acked else self._groups[gid].state
            return Stored(gid, duplicate=True, state=state)
        self._last_gid += 1
        gid = self._last_gid
        state = GroupState.BUFFERED if new.buffered else GroupState.PENDING
        summary = GroupSummary(gid, new.env, new.n_seq, new.version)
        self._groups[gid] = _Group(summary, state, digest, new.payload, new.key)
        if new.key is not None:
            self._keys[new.key] = gid
        if state is GroupState.PENDING:
            self._queue[gid] = summary
        return Stored(gid, duplicate=False, state=state)

    def release(self, gids: Sequence[int]) -> None:
        with self._lock:
            for gid in gids:
                if gid in self._groups and self._groups[gid].state is GroupState.BUFFERED:
                    self._move(gid, GroupState.PENDING)

    def _move(self, gid: int, state: GroupState) -> None:
        group = self._groups[gid]
        group.state = state
        self._queue.pop(gid, None)
        if state is GroupState.PENDING:
            self._queue[gid] = group.summary
        if state is GroupState.ACKED:
            del self._groups[gid]
            if group.key is not None:
                self._acked[gid] = group.digest

    def register(self) -> int:
        with self._lock:
            self._generation += 1
            return self._generation

    def claim(
        self, generation: int, size: int, choose: Chooser, now: float, lease_s: float
    ) -> Batch | str:
        with self._lock:
            if generation != self._generation:
                raise Fenced(f"trainer generation {generation} was replaced")
            for no, batch in sorted(self._batches.items()):
                if batch.acked:
                    continue
                if batch.n_seq == size:
                    batch.epoch += 1
                    batch.generation = generation
                    batch.lease_until = now + lease_s
                    return Batch(no, batch.epoch, batch.gids, generation)
                for gid in batch.gids:
                    self._move(gid, GroupState.PENDING)
                del self._batches[no]
            selection = choose(sorted(self._queue.values(), key=lambda group: group.gid))
            if not selection.gids:
                return selection.blocked_reason or "no batch can be formed"
            for gid in selection.gids:
                self._move(gid, GroupState.LEASED)
            self._last_batch += 1
            made = _Batch(selection.gids, size, generation, 1, now + lease_s)
            self._batches[self._last_batch] = made
            return Batch(self._last_batch, 1, made.gids, generation)

    def read(self, gids: Sequence[int]) -> list[bytes]:
        with self._lock:
            groups = [(gid, self._groups.get(gid)) for gid in gids]
        return [
            checked(gid, group.payload if group else None, group.digest if group else b"")
            for gid, group in groups
        ]

    def _owned(self, no: int, generation: int, epoch: int) -> _Batch:
        batch = self._batches.get(no)
        owner = (batch.generation, batch.epoch) if batch else None
        require_owner(no, owner, generation, epoch, self._generation)
        return self._batches[no]

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        with self._lock:
            self._owned(no, generation, epoch).lease_until = lease_until

    def ack(self, no: int, generation: int, epoch: int) -> bool:
        with self._lock:
            batch = self._owned(no, generation, epoch)
            if batch.acked:
                return False
            batch.acked = True
            for gid in batch.gids:
                self._move(gid, GroupState.ACKED)
            return True

    def load(self, name: str) -> bytes | None:
        with self._lock:
            return self._documents.get(name)

    def save(self, name: str, document: bytes) -> None:
        with self._lock:
            self._documents[name] = document

    def buffered(self) -> list[tuple[int, int | None, int]]:
        with self._lock:
            return [
                (gid, group.summary.env, group.summary.n_seq)
                for gid, group in sorted(self._groups.items())
                if group.state is GroupState.BUFFERED
            ]

    def stats(self) -> StoreStats:
        with self._lock:
            kinds = Counter(
                (group.state, group.summary.env, group.summary.n_seq)
                for group in self._groups.values()
            )
            batches = list(self._batches.values())
            return StoreStats(
                tallies=tuple(Tally(*kind, groups=count) for kind, count in kinds.items()),
                batches_acked=sum(batch.acked for batch in batches),
                delivered=sum(batch.generation == self._generation for batch in batches),
            )

    def reset(self) -> None:
        with self._lock:
            self._generation += 1
            self._forget()

    def close(self) -> None:
        """Nothing is held open."""
