"""Service context: store, cached run, liveness, queue statistics, events and metrics.

posts, claims, admission, service  -->  ServiceContext  -->  store, run_cache
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from atroposlib.api.archive.index import EXTRA_BYTES, Index
from atroposlib.api.archive.indexer import Indexer
from atroposlib.api.common.pools import Threads
from atroposlib.api.common.run_record import EnvEntry, RunRecord
from atroposlib.api.common.waiting import BroadcastEvent
from atroposlib.api.decisions.run_state import find_env, require_run
from atroposlib.api.decisions.steering import steered_entries
from atroposlib.api.run.events import Events
from atroposlib.api.run.liveness import SYNC_S, Liveness
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.run.queue_stats import QueueStats
from atroposlib.api.run.run_cache import RunCache, RunView
from atroposlib.api.store import Store
from atroposlib.api.store.sql.run import FreeAbsent
from atroposlib.errors import StoreError, UnknownEnv

RESYNC_S = 1.0  # shortest time between two notes of requests: on a full disk each fails
# Clients repeat a refused post within 10 s, so an older refusal is over.
REFUSAL_S = 30.0


class ServiceContext:
    """State shared by the parts of the service, an object per process, for its event loop only."""

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
        self._refusal = ("", float("-inf"))  # problem and time of the last post without room
        self._next_sync = float("-inf")
        self._steered: tuple[Sequence[EnvEntry], object, Sequence[EnvEntry]] | None = None
        self.stopping = False  # the process is about to end: waiting calls return
        self.run_cache = RunCache(store, self.threads.reads, self._on_run_change)

    @property
    def view(self) -> RunView:
        return self.run_cache.view

    @property
    def run(self) -> RunRecord:
        return self.run_cache.view.run

    def live(self) -> Sequence[EnvEntry]:
        """Environments that hold a share of the batches now, as an operator steers them."""
        live = self.liveness.live(self.run.envs, self.run.seen)
        return self._steered_entries(live) if self.run.steering else live

    def _steered_entries(self, live: Sequence[EnvEntry]) -> Sequence[EnvEntry]:
        """The same object until something changes, as callers compare it."""
        known, run = self._steered, self.run
        if known is None or known[0] is not live or known[1] is not run.steering:
            known = self._steered = live, run.steering, steered_entries(run, live)
        return known[2]

    async def obstacles(self) -> tuple[str | None, list[str]]:
        """Why the next claim gets no new batch, None if it gets a batch; and what starves."""
        live, now = self.live(), self.clock()
        reason, starved = await self.queue_stats.blocked_reason(self.run, live, now)
        if reason and self.refusal and "the store is full" not in reason:
            reason = f"posts are refused: {self.refusal}; {reason}"  # the outer cause first
        return reason, starved

    def note_refusal(self, problem: str) -> None:
        """Record that the store has no room for a post."""
        self._refusal = problem, self.clock()

    @property
    def refusal(self) -> str | None:
        """The problem of a post without room in the last ``REFUSAL_S``; None without any."""
        problem, at = self._refusal
        return problem if self.clock() - at <= REFUSAL_S else None

    async def free_absent(self) -> bool:
        """Free the buffers and admissions of environments that left or are silent; True if
        there were any."""
        live = [env.env_id for env in self.live()]
        groups, admissions = await self.threads.writes.run(self.store.do, FreeAbsent(live))
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
        self._refusal = ("", float("-inf"))
        self.queue_stats.invalidate()
        self.groups_changed.notify()
        self.space_freed.notify()

    async def find_env(self, env_id: int, run_id: str | None = None) -> EnvEntry:
        """The calling environment; reads the run again if another replica may have added it."""
        try:
            require_run(self.run, run_id)
            return find_env(self.run, env_id)
        except UnknownEnv:
            if not self.store.shared or not await self.run_cache.refresh():
                raise
        require_run(self.run, run_id)
        return find_env(self.run, env_id)

    async def touch(self, *env_ids: int | None) -> None:
        """Record a request of these environments; noted in the run at the next sync."""
        for env_id in env_ids:
            self.liveness.record_request(env_id)
        if self.clock() < self._next_sync or not any(map(self._sync_due, env_ids)):
            return
        self._next_sync = self.clock() + RESYNC_S
        with suppress(StoreError):  # a full disk must not end the calls that tell of it
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
