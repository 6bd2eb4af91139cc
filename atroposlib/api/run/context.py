"""What the parts of the service share: the store, the run, who is there, and wake-up calls.

posts, claims, leases, status  -->  Core  -->  store, run_keeper, presence, holdings
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from atroposlib.api.common.records import EnvEntry
from atroposlib.api.common.threads import BroadcastEvent, Threads
from atroposlib.api.decisions.run_state import ENV_TIMEOUT_S, RunRecord, find_env
from atroposlib.api.run.events import Events
from atroposlib.api.run.liveness import Presence
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.run.queue_stats import Holdings
from atroposlib.api.run.run_cache import RunKeeper, RunView
from atroposlib.api.store import Store
from atroposlib.errors import UnknownEnv


class Core:
    """One per process. All of it belongs to the event loop; blocking calls go to threads."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.store = store
        self.clock = clock
        self.threads = Threads()
        self.presence = Presence(clock, ENV_TIMEOUT_S)
        self.metrics = Metrics(self._name_of)
        self.events = Events(clock)
        self.groups_changed = (
            BroadcastEvent()
        )  # something that a waiting claim may want to see
        self.room_made = BroadcastEvent()  # payloads were freed: a held post may fit now
        self.holdings = Holdings(store, self.threads.reads, self.metrics)
        self.stopping = False  # the process is about to end: nobody waits any more
        self.keeper = RunKeeper(store, self.threads.reads, self._on_run_change)

    @property
    def view(self) -> RunView:
        return self.keeper.view

    @property
    def run(self) -> RunRecord:
        return self.keeper.view.run

    def live(self) -> Sequence[EnvEntry]:
        """Environments that hold a share now."""
        return self.presence.live(self.run.envs, self.run.seen)

    def stop_waiting(self) -> None:
        """Answer now whoever waits, and end the streams of events."""
        self.stopping = True
        self.groups_changed.notify()
        self.room_made.notify()
        self.events.close()

    def groups_came(self) -> None:
        self.holdings.outdated()
        self.groups_changed.notify()

    def groups_went(self) -> None:
        """Batches moved on; payloads may have been freed, groups may be queued again."""
        self.holdings.outdated()
        self.groups_changed.notify()
        self.room_made.notify()

    async def find_env(self, env_id: int, run_id: str | None = None) -> EnvEntry:
        """The environment that calls; looks twice where others may have registered it.

        Raises:
            UnknownEnv: no such id in this run, or the id is of another run.
        """
        try:
            return find_env(self.run, env_id, run_id)
        except UnknownEnv:
            if not self.store.shared or not await self.keeper.refresh():
                raise
            return find_env(self.run, env_id, run_id)

    async def heard_of(self, *env_ids: int | None) -> None:
        """These environments called; other replicas learn of it in time."""
        for env_id in env_ids:
            self.presence.called(env_id)
        if self.store.shared and self.presence.news(self.run.seen):
            await self.keeper.change(
                lambda run: msgspec.structs.replace(
                    run, seen=self.presence.news(run.seen) or run.seen
                )
            )

    def _on_run_change(self, old: RunView, new: RunView) -> None:
        if old.run.run_id and old.run.run_id != new.run.run_id:
            self.presence.forget_envs()
        self.groups_went()

    def _name_of(self, env_id: int) -> str | None:
        envs = self.run.envs
        return envs[env_id].wandb_name if 0 <= env_id < len(envs) else None
