"""Service context: store, cached run, liveness, queue statistics, events and metrics.

posts, claims, admission, service  -->  ServiceContext  -->  store, run_cache
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic
from uuid import uuid4

import msgspec

from atroposlib.api.archive.index import EXTRA_BYTES, Index
from atroposlib.api.archive.indexer import Indexer
from atroposlib.api.common.pools import Pool, Threads
from atroposlib.api.common.records import StoreStats
from atroposlib.api.common.run_record import EnvEntry, RunRecord
from atroposlib.api.common.waiting import BroadcastEvent
from atroposlib.api.decisions.allocation import Supply, supply_of
from atroposlib.api.decisions.batching import (
    Situation,
    StalenessRule,
    blocked_reason,
    starved,
    uncommitted,
)
from atroposlib.api.decisions.run_state import MINIMUM_TIMEOUT_S, find_env, silent_after_s
from atroposlib.api.decisions.stalled import REPORT_S, directory, participants, require_short
from atroposlib.api.run.events import Events
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.run.run_cache import SHARED_STORE_LAG_S, RunCache, RunView
from atroposlib.api.store import Store
from atroposlib.errors import UnknownEnv
from atroposlib.wire import Heartbeat, Participant, ServerDirectory
from atroposlib.wire.status import ServerState

FORGET_AFTER_S = 3600.0
MAX_PARTICIPANTS = 1024  # of each role; names cost memory, so the oldest are dropped first
MAX_SERVERS = 1024
SYNC_S = MINIMUM_TIMEOUT_S / 4  # between two writes of a request for other replicas
_NOBODY: Mapping[int, float] = {}


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
        self._reason: tuple[StoreStats, object, str | None, list[str]] | None = None
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
            stats = await self._pool.run(self._metrics.timed, self._store.stats)
            self._stats, self._seen_changes, self._read_at = stats, seen, looked_at
            self._bytes_since -= added
            return stats

    def _known(self, wanted: int) -> StoreStats | None:
        late = self._store.shared and monotonic() - self._read_at > SHARED_STORE_LAG_S
        return None if late or self._seen_changes < wanted else self._stats

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

    async def credit_bytes(self) -> int:
        """Payload bytes that would still be accepted, approximately."""
        return max(0, self._store.max_bytes - await self.retained_bytes(0))

    def supply(self, stats: StoreStats, live: Sequence[EnvEntry], batch_size: int) -> Supply:
        """``stats`` summed for /status-env. ``live`` is the same object until it changes."""
        known = self._supply
        if known and known[0] is stats and known[1] is live and known[2] == batch_size:
            return known[3]
        supply = supply_of(live, stats.group_counts, batch_size)
        self._supply = (stats, live, batch_size, supply)
        return supply

    async def blocked_reason(
        self, run: RunRecord, live: Sequence[EnvEntry], now: float
    ) -> tuple[str | None, list[str]]:
        """Why the next claim gets no new batch, or None; and warnings."""
        stats, trainer = await self.read(), run.registration
        admitted: Mapping[int | None, int] = {}
        if trainer.max_staleness is not None:
            admitted = await self._pool.run(self._store.admitted, now)
        about = (trainer, run.policy_version, tuple(env.env_id for env in live), admitted)
        known = self._reason
        if known is not None and known[0] is stats and known[1] == about:
            return known[2], known[3]
        rule, stale = StalenessRule.of(run), {}
        if rule.policy == "drop" and (oldest := rule.oldest_version) is not None:
            stale = dict(await self._pool.run(self._store.older_than, oldest))
        situation = Situation.of(run, live, self._store.max_bytes, stale, admitted)
        reason = await self._pool.run(blocked_reason, stats, situation)
        warnings = starved(stats, situation.batch_size, situation.names)
        warnings += uncommitted(stats, self._store.max_bytes)
        self._reason = (stats, about, reason, warnings)
        return reason, warnings


@dataclass(frozen=True, slots=True)
class _Live:
    """Environments live from ``since`` to ``until`` unless a silent one calls.

    Cached because a hundred environments poll ten times a second.
    """

    envs: Sequence[EnvEntry]
    seen: Mapping[int, float]
    since: float
    until: float
    live: tuple[EnvEntry, ...]
    ids: set[int]

    def knows(self, env_id: int) -> bool:
        return bool(self.envs) and env_id <= self.envs[-1].env_id


class Liveness:
    """Heartbeats and requests with their ages, by the clock of the API."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._instance, self._began = uuid4().hex, clock()
        self._since = self._began  # restarts count as a request: it could not come before
        # By role and name, the oldest first.
        self._beats: dict[str, dict[str, tuple[Heartbeat, float]]] = {}
        # By URL and by the role and name of the caller, with the time of its report.
        self._servers: dict[str, dict[tuple[str, str], tuple[ServerState, float]]] = {}
        self._freshened = self._began
        self._calls: dict[int, float] = {}
        self._lives: dict[str, float] = {}  # of trainers -> last heartbeat; inf: ended
        self._live: _Live | None = None

    def silent_s(self, life: str) -> float | None:
        """Seconds since the last heartbeat of a trainer's life; None: it said that it ends.

        After a restart of the API every trainer counts as heard.
        """
        heard = max(self._since, self._lives.get(life, 0.0))
        return None if heard == inf else self._clock() - heard

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Store the latest heartbeat of a process.

        Raises:
            ConfigError: its details exceed the bounds.
        """
        require_short(heartbeat.details)
        now = self._clock()
        who = (heartbeat.role, heartbeat.name)
        alike = self._beats.setdefault(heartbeat.role, {})
        alike.pop(heartbeat.name, None)  # re-inserted at the end, so the first is the oldest
        alike[heartbeat.name] = (heartbeat, now)
        self._record_servers(who, heartbeat.servers, now)
        if heartbeat.role == "trainer" and (life := str(heartbeat.details.get("life", ""))):
            self._lives.pop(life, None)
            self._lives[life] = inf if "ended" in heartbeat.details else now
            if len(self._lives) > MAX_PARTICIPANTS:
                del self._lives[next(iter(self._lives))]
        while now - alike[first := next(iter(alike))][1] > FORGET_AFTER_S or (
            len(alike) > MAX_PARTICIPANTS
        ):
            del alike[first]

    def _record_servers(
        self, who: tuple[str, str], states: Sequence[ServerState], now: float
    ) -> None:
        for state in states:
            if state.url in self._servers or len(self._servers) < MAX_SERVERS:
                self._servers.setdefault(state.url, {})[who] = (state, now)
        if 0 <= now - self._freshened < REPORT_S / 10:  # each environment reports each server
            return
        self._freshened = now
        for url, reports in list(self._servers.items()):
            fresh = {who: one for who, one in reports.items() if now - one[1] <= REPORT_S}
            self._servers[url] = fresh
            if not fresh:
                del self._servers[url]

    def record_request(self, env_id: int | None) -> None:
        if env_id is not None:
            self._calls[env_id] = self._clock()
            known = self._live
            if known and env_id not in known.ids and known.knows(env_id):
                self._live = None  # it was silent until now

    def forget_envs(self) -> None:
        """Forget all requests: a new run numbers its environments from 0."""
        self._calls.clear()
        self._live = None
        self._since = self._clock()

    def keep(self, env_ids: Iterable[int]) -> None:
        """Forget the requests of all other environments."""
        self._calls = {env: self._calls[env] for env in env_ids if env in self._calls}

    def live(
        self, envs: Sequence[EnvEntry], seen: Mapping[int, float] = _NOBODY
    ) -> Sequence[EnvEntry]:
        """Environments that hold a share: connected and not silent.

        Returns the same object until that changes. ``seen`` maps environments to the time of
        their last request to another replica.
        """
        known, now = self._live, self._clock()
        if not known or known.seen is not seen or not known.since <= now <= known.until:
            known = _Live((), seen, now, inf, (), set())
        elif known.envs is envs:
            return known.live
        elif envs[: len(known.envs)] != known.envs:  # others than new ones changed
            known = _Live((), seen, now, inf, (), set())
        live, ends = [], known.until
        for env in envs[len(known.envs) :]:
            heard = self._calls.get(env.env_id, self._since)
            heard = max(heard, seen.get(env.env_id, 0.0), env.joined)
            if env.connected and (until := heard + silent_after_s(env)) >= now:
                live.append(env)
                ends = min(ends, until)
        known.ids.update(env.env_id for env in live)
        all_live = (*known.live, *live) if live else known.live
        self._live = _Live(envs, seen, known.since, ends, all_live, known.ids)
        return all_live

    def pending_sync(self, seen: Mapping[int, float]) -> dict[int, float]:
        """``seen`` merged with the requests received here, if a sync is due; otherwise empty.

        A sync is due before another replica would count an environment as silent, so the
        number of writes does not depend on the load.
        """
        if all(at - seen.get(env, 0.0) < SYNC_S for env, at in self._calls.items()):
            return {}
        merged = dict(seen)
        for env, at in self._calls.items():
            merged[env] = max(at, merged.get(env, 0.0))
        return merged

    def directory(self) -> ServerDirectory:
        """Inference servers whose announcement is fresh."""
        now = self._clock()
        return directory(self._all_beats(), self._servers, now, self._instance, self._began)

    def _all_beats(self) -> list[tuple[Heartbeat, float]]:
        return [beat for alike in self._beats.values() for beat in alike.values()]

    def participants(self) -> list[Participant]:
        """Processes, and inference servers out of all reports about them."""
        now = self._clock()
        fresh = (one for one in self._all_beats() if now - one[1] <= FORGET_AFTER_S)
        return participants(fresh, self._servers, now)


class ServiceContext:
    """State shared by the parts of the service, one per process, for its event loop only."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        threads: Threads,
        index_bytes: int = EXTRA_BYTES,
    ) -> None:
        self.store = store
        self.clock = clock
        self.threads = threads
        self.liveness = Liveness(clock)
        self.metrics = Metrics(self.name_of)
        self.indexer = Indexer(Index(store.archive, extra_bytes=index_bytes), store)
        self.events = Events(clock, keep=self.indexer.on_event)
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

    async def blocked_reason(self) -> str | None:
        """Why the next claim gets no new batch; None if it gets one."""
        live, now = self.live(), self.clock()
        return (await self.queue_stats.blocked_reason(self.run, live, now))[0]

    async def free_absent(self) -> bool:
        """Free the buffers and admissions of environments that left or are silent; True if
        there were any."""
        live = [env.env_id for env in self.live()]
        groups, admissions = await self.threads.writes.run(self.store.free_absent, live)
        if groups or admissions:
            self.events.publish("freed", groups=groups, admissions=admissions)
            self.on_groups_removed()
        return bool(groups or admissions)

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
        """The calling environment; reads the run again if another replica may have added it."""
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
        if self.store.shared and any(map(self._sync_due, env_ids)):
            await self.run_cache.update(
                lambda run: msgspec.structs.replace(
                    run, seen=self.liveness.pending_sync(run.seen) or run.seen
                )
            )

    def _sync_due(self, env_id: int | None) -> bool:
        with suppress(UnknownEnv):
            if env_id is not None:
                known = max(find_env(self.run, env_id).joined, self.run.seen.get(env_id, 0.0))
                return self.clock() - known >= SYNC_S
        return False

    def _on_run_change(self, old: RunView, new: RunView) -> None:
        if old.run.run_id and old.run.run_id != new.run.run_id:
            self.liveness.forget_envs()
            self.indexer.begin_run()  # perhaps reset by another replica
        elif new.run.envs[: len(old.run.envs)] != old.run.envs:  # some were forgotten
            self.liveness.keep(env.env_id for env in new.run.envs)
        self.on_groups_removed()

    def name_of(self, env_id: int) -> str | None:
        with suppress(UnknownEnv):
            return find_env(self.run, env_id).wandb_name
        return None
