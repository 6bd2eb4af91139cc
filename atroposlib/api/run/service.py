"""All verbs of the API, without HTTP.

    routes -> RolloutService -> posts, claims, leases -> core -> store (in threads)
                            '-> run_state, batching, ... (pure)

Whatever a caller hears of is durable. Nothing here locks the run: see ``run_keeper``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from atroposlib.api.common.records import MAX_DELIVERIES, EnvEntry
from atroposlib.api.decisions import run_state
from atroposlib.api.decisions.run_state import RunRecord, RunState
from atroposlib.api.guards.auth import require_env
from atroposlib.api.guards.tokens import Caller
from atroposlib.api.run import status
from atroposlib.api.run.admission import AdmissionControl
from atroposlib.api.run.claims import Claims
from atroposlib.api.run.context import Core
from atroposlib.api.run.legacy_batches import OldTrainers
from atroposlib.api.run.posts import Posts
from atroposlib.api.run.queue_stats import trained_sequences
from atroposlib.api.run.run_cache import RunView
from atroposlib.api.store import Store
from atroposlib.wire import (
    AdmissionReply,
    AdmissionRequest,
    EnvIdentifier,
    EnvStatus,
    Heartbeat,
    RegisterEnv,
    Registration,
    RunStatus,
)


class RolloutService:
    """One per process; it owns the store.

    ``posts`` and ``claims`` move groups, ``old_trainers`` serves GET /batch.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        max_deliveries: int = MAX_DELIVERIES,
    ) -> None:
        self.core = Core(store, clock)
        self.store, self.clock = store, clock
        self.metrics, self.events = self.core.metrics, self.core.events
        self.posts = Posts(self.core)
        self.claims = Claims(self.core, max_deliveries)
        self.admission = AdmissionControl(self.core)
        self.old_trainers = OldTrainers(self.core, self.claims)

    @property
    def run(self) -> RunRecord:
        return self.core.run

    def resumed(self) -> str | None:
        """One line about what the store brought along; None if it brought nothing."""
        stats = self.store.stats()
        if self.run == RunRecord() and not stats.group_counts:
            return None
        groups = sum(group_count.groups for group_count in stats.group_counts)
        return (
            f"run {self.run.run_id[:8]} {self.run.state.value}: {groups} groups held, "
            f"{stats.batches_acked} batches acked, policy version {self.run.policy_version}"
        )

    def stop_waiting(self) -> None:
        """The process is about to end: calls that wait are answered now."""
        self.core.stop_waiting()

    def close(self) -> None:
        """End the streams of events and let go of the store."""
        self.events.close()
        self.store.close()

    # --- the trainer ----------------------------------------------------------------

    async def register(self, body: Registration) -> RunView:
        """A trainer takes the run. Trainers that registered before are fenced."""
        core, fresh_id = self.core, uuid.uuid4().hex
        await core.keeper.refresh_if_old()
        trained = trained_sequences(await core.holdings.look())
        view = await core.keeper.change(
            lambda run: run_state.register(run, body, fresh_id, trained), fence=True
        )
        self.events.publish(
            "registered", generation=view.generation, batch_size=body.batch_size
        )
        return view

    async def announce_version(self, version: int) -> int:
        """New weights are everywhere; the latest version.

        Raises:
            NotRegistered: no trainer has registered.
        """
        await self.core.keeper.refresh_if_old()
        view = await self.core.keeper.change(lambda run: run_state.announce(run, version))
        self.events.publish("policy_version", version=view.run.policy_version)
        return view.run.policy_version

    async def reset(self) -> None:
        """Forget the run and all groups. Ids of its environments mean nothing any more."""
        core = self.core
        document = await core.threads.reads.run(self.store.reset)
        core.keeper.adopt(document)
        self.posts.forget()
        core.groups_went()
        self.events.publish("reset")

    # --- environments ---------------------------------------------------------------

    async def register_env(
        self, body: RegisterEnv, caller: Caller | None = None
    ) -> tuple[EnvEntry, RunView] | None:
        """The entry, or None while environments still wait for the trainer.

        Raises:
            ConfigError: there are too many.
            Forbidden: the token is bound to an environment of another name.
        """
        require_env(caller, body.desired_name)
        core = self.core
        await core.keeper.refresh_if_old()
        if core.run.state is not RunState.STARTED and core.store.shared:
            await core.keeper.refresh()
        if core.run.state is not RunState.STARTED:
            return None
        joined: list[EnvEntry] = []

        def join(run: RunRecord) -> RunRecord:
            joined.clear()
            if run.state is not RunState.STARTED:  # reset meanwhile
                return run
            run, entry = run_state.join(run, body)
            joined.append(entry)
            return run

        view = await core.keeper.change(join)
        if not joined:
            return None
        await core.heard_of(joined[0].env_id)
        self.events.publish("env_joined", env=joined[0].env_id, name=joined[0].wandb_name)
        return joined[0], view

    async def disconnect_env(self, who: EnvIdentifier, caller: Caller | None = None) -> None:
        """An environment says goodbye: it holds no share any more.

        Raises:
            UnknownEnv: no such env in this run.
            Forbidden: the token is bound to another environment.
        """
        entry = await self.core.find_env(who.env_id, who.run_id)
        require_env(caller, entry.desired_name)

        def leave(run: RunRecord) -> RunRecord:
            run_state.require_run(run, who.run_id)
            return run_state.leave(run, who.env_id)

        await self.core.keeper.change(leave)
        self.events.publish("env_left", env=who.env_id)

    async def env_status(self, who: EnvIdentifier, caller: Caller | None = None) -> EnvStatus:
        """What one environment needs to pace itself.

        Raises:
            UnknownEnv: no such env in this run.
            Forbidden: the token is bound to another environment.
        """
        entry = await self._calling_env(who, caller)
        return await status.status_of_env(self.core, entry)

    async def admit(
        self, asked: AdmissionRequest, caller: Caller | None = None
    ) -> AdmissionReply:
        """How many rollouts of an environment may begin.

        Raises:
            UnknownEnv: no such env in this run.
            Forbidden: the token is bound to another environment.
        """
        entry = await self._calling_env(asked, caller)
        admission_id, granted, reason = await self.admission.admit(asked, entry)
        return AdmissionReply(
            admission_id=admission_id,
            granted=granted,
            blocked_reason=reason,
            credit_bytes=await self.posts.credit_bytes(),
        )

    async def _calling_env(
        self, who: EnvIdentifier | AdmissionRequest, caller: Caller | None
    ) -> EnvEntry:
        """The environment that calls, which thereby shows that it is there."""
        await self.core.keeper.refresh_if_old()
        entry = await self.core.find_env(who.env_id, who.run_id)
        require_env(caller, entry.desired_name)
        await self.core.heard_of(entry.env_id)
        return entry

    # --- what everybody may know ------------------------------------------------------

    def heartbeat(self, beat: Heartbeat) -> None:
        """A process says what it does.

        Raises:
            ConfigError: it says too much.
        """
        self.core.presence.beat(beat)

    async def current_step(self) -> int:
        """Starting step plus the batches that this trainer generation was handed."""
        return await status.current_step(self.core)

    async def status(self) -> RunStatus:
        await self.core.keeper.refresh_if_old()
        return await status.status_of_run(self.core)
