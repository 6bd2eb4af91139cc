"""Service context: store, cached run, liveness, queue statistics, events and metrics.

posts, claims, admission, service  -->  ServiceContext  -->  store, run_cache, liveness
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import msgspec

from atroposlib.api.common.records import EnvEntry, GroupState, StateTotals, StoreStats
from atroposlib.api.common.threads import BroadcastEvent, Pool, Threads
from atroposlib.api.decisions.allocation import (
    Supply,
    minima_of,
    minimum_sequences,
    supply_of,
)
from atroposlib.api.decisions.blocked import blocked_reason
from atroposlib.api.decisions.run_state import ENV_TIMEOUT_S, RunRecord, find_env
from atroposlib.api.run.events import Events
from atroposlib.api.run.liveness import Liveness
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.run.run_cache import SHARED_STORE_LAG_S, RunCache, RunView
from atroposlib.api.store import Store
from atroposlib.errors import UnknownEnv

_NOTHING = StateTotals()


class QueueStats:
    """The latest :class:`StoreStats`, cached until a change; one read serves all waiting calls.

    Polls are frequent and changes are few: a poll of the queue length, or a claim when no
    batch can form, makes no call of the store.
    """

    def __init__(self, store: Store, pool: Pool, metrics: Metrics) -> None:
        self._store = store
        self._pool = pool
        self._metrics = metrics
        self._turn = asyncio.Lock()
        self._changes = 0  # made by this process
        self._seen_changes = -1  # of them are in _stats
        self._stats: StoreStats | None = None
        self._read_at = 0.0
        self._bytes_since = 0
        self._reason: tuple[StoreStats, object, str | None] | None = None
        self._supply: tuple[StoreStats, Sequence[EnvEntry], int, Supply] | None = None

    def invalidate(self) -> None:
        """The store changed: later calls read it again."""
        self._changes += 1

    def added(self, n_bytes: int) -> None:
        """Count payload bytes that were added since the last read."""
        self._bytes_since += n_bytes

    async def read(self) -> StoreStats:
        """Statistics of the store, as of this call or later."""
        wanted = self._changes
        if (stats := self._known(wanted)) is not None:
            return stats
        async with self._turn:
            if (stats := self._known(wanted)) is not None:
                return stats
            seen, looked_at, added = self._changes, monotonic(), self._bytes_since
            stats = await self._pool.run(lambda: self._metrics.timed(self._store.stats))
            self._stats, self._seen_changes, self._read_at = stats, seen, looked_at
            self._bytes_since -= added
            return stats

    def _known(self, wanted: int) -> StoreStats | None:
        if self._stats is None or self._seen_changes < wanted:
            return None
        if self._store.shared and monotonic() - self._read_at > SHARED_STORE_LAG_S:
            return None
        return self._stats

    async def retained_bytes(self, wanted_bytes: int) -> int:
        """Payload bytes in the store.

        Exact where ``wanted_bytes`` more might not fit. Otherwise an upper bound, so that
        posts do not pay for a read of the store.
        """
        if self._stats is not None:
            estimate = self._stats.retained_bytes + self._bytes_since
            if estimate + wanted_bytes <= self._store.max_bytes // 2:
                return estimate
        return (await self.read()).retained_bytes

    def supply(self, stats: StoreStats, live: Sequence[EnvEntry], batch_size: int) -> Supply:
        """``stats`` summed for /status-env. ``live`` is the same object until it changes."""
        known = self._supply
        if known and known[0] is stats and known[1] is live and known[2] == batch_size:
            return known[3]
        supply = supply_of(live, stats.group_counts, batch_size)
        self._supply = (stats, live, batch_size, supply)
        return supply

    async def blocked_reason(self, batch_size: int, live: Sequence[EnvEntry]) -> str | None:
        """Why the queued groups form no batch; None if they may."""
        stats = await self.read()
        about = (batch_size, tuple(env.env_id for env in live))
        known = self._reason
        if known is not None and known[0] is stats and known[1] == about:
            return known[2]
        needs = minimum_sequences(minima_of(live), batch_size)
        names = {env.env_id: env.wandb_name for env in live}
        reason = await self._pool.run(
            lambda: blocked_reason(stats.group_counts, batch_size, needs, names)
        )
        self._reason = (stats, about, reason)
        return reason


def sequences_in(stats: StoreStats) -> Mapping[GroupState, int]:
    """Sequences held, by state."""
    sequences = {state: 0 for state in GroupState}
    for group_count in stats.group_counts:
        sequences[group_count.state] += group_count.sequences
    return sequences


def trained_sequences(stats: StoreStats) -> int:
    """Sequences of all batches acked so far in this run."""
    ends = stats.totals
    states = (GroupState.ACKED, GroupState.COMMITTED)
    return sum(ends.get(state, _NOTHING).sequences for state in states)


class ServiceContext:
    """State shared by the parts of the service, one per process, for its event loop only."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.store = store
        self.clock = clock
        self.threads = Threads()
        self.liveness = Liveness(clock, ENV_TIMEOUT_S)
        self.metrics = Metrics(self._name_of)
        self.events = Events(clock)
        self.groups_changed = BroadcastEvent()  # wakes waiting claims
        self.space_freed = BroadcastEvent()  # wakes held posts: payloads were freed
        self.queue_stats = QueueStats(store, self.threads.reads, self.metrics)
        self.stopping = False  # the process is about to end: waiting calls return
        self.run_cache = RunCache(store, self.threads.reads, self._on_run_change)

    @property
    def view(self) -> RunView:
        return self.run_cache.view

    @property
    def run(self) -> RunRecord:
        return self.run_cache.view.run

    def live(self) -> Sequence[EnvEntry]:
        """Environments that hold a share of the batches now."""
        return self.liveness.live(self.run.envs, self.run.seen)

    def stop_waiting(self) -> None:
        """Let all waiting calls return, and end the streams of events."""
        self.stopping = True
        self.groups_changed.notify()
        self.space_freed.notify()
        self.events.close()

    def on_groups_added(self) -> None:
        self.queue_stats.invalidate()
        self.groups_changed.notify()

    def on_groups_removed(self) -> None:
        """Batches changed state: payloads may be freed, groups may be queued again."""
        self.queue_stats.invalidate()
        self.groups_changed.notify()
        self.space_freed.notify()

    async def find_env(self, env_id: int, run_id: str | None = None) -> EnvEntry:
        """The calling environment; reads the run again if another replica may have added it.

        Raises:
            UnknownEnv: no such id in this run, or the id is of another run.
        """
        try:
            return find_env(self.run, env_id, run_id)
        except UnknownEnv:
            if not self.store.shared or not await self.run_cache.refresh():
                raise
            return find_env(self.run, env_id, run_id)

    async def touch(self, *env_ids: int | None) -> None:
        """Record a request of these environments; replicated at the next sync."""
        for env_id in env_ids:
            self.liveness.record_request(env_id)
        if self.store.shared and self.liveness.pending_sync(self.run.seen):
            await self.run_cache.update(
                lambda run: msgspec.structs.replace(
                    run, seen=self.liveness.pending_sync(run.seen) or run.seen
                )
            )

    def _on_run_change(self, old: RunView, new: RunView) -> None:
        if old.run.run_id and old.run.run_id != new.run.run_id:
            self.liveness.forget_envs()
        self.on_groups_removed()

    def _name_of(self, env_id: int) -> str | None:
        envs = self.run.envs
        return envs[env_id].wandb_name if 0 <= env_id < len(envs) else None
