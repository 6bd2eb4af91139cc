"""All calls of the API, without HTTP.

    routes -> RolloutService -> posts, claims, admission -> context -> store (in threads)
                            '-> run_state, batching, ... (pure)

Replies report durable state only. The run is not locked: see ``run_cache``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

from atroposlib import wire
from atroposlib.api.archive.index import EXTRA_BYTES
from atroposlib.api.archive.records import DropFact, RunFacts, StepFact, WeightFact
from atroposlib.api.archive.token_balance import TokenBalance
from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.common.pools import Threads
from atroposlib.api.common.records import MAX_DELIVERIES, GroupState, StoreStats
from atroposlib.api.common.run_record import EnvEntry, RunRecord, RunState
from atroposlib.api.decisions import fair_share, run_state
from atroposlib.api.decisions.allocation import env_status
from atroposlib.api.decisions.balance import with_report
from atroposlib.api.decisions.stalled import stalled, with_stalled
from atroposlib.api.decisions.steering import (
    described,
    follow,
    registered_name,
    steer,
    steered_entries,
    steering_of,
    weights_in_force,
)
from atroposlib.api.guards.auth import require_env
from atroposlib.api.guards.busy import BusyReplies
from atroposlib.api.guards.tokens import Caller
from atroposlib.api.run.admission import AdmissionControl
from atroposlib.api.run.claims import Claims, LegacyBatchEndpoint
from atroposlib.api.run.context import ServiceContext
from atroposlib.api.run.judge import Judge
from atroposlib.api.run.posts import Posts
from atroposlib.api.run.run_cache import RunView
from atroposlib.api.store import Store
from atroposlib.api.store.sql.ack import After
from atroposlib.api.store.sql.run import begin_run, reset_run
from atroposlib.errors import ConfigError
from atroposlib.wire import ids
from atroposlib.wire.status import (
    AccountReport,
)

MAX_SHARES = 256  # environments listed by /status, which people read and monitors poll
MAX_HELD = 10_000  # pairs of run and server whose version was noted


class RolloutService:
    """Service of a process; it owns the store.

    ``posts`` and ``claims`` move groups, ``legacy_batches`` serves GET /batch. Calls of an
    environment raise Forbidden if the token is bound to another environment, and UnknownEnv if this
    run lacks the environment; calls that need a trainer raise NotRegistered without a trainer.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        max_deliveries: int = MAX_DELIVERIES,
        threads: Threads | None = None,
        index_bytes: int = EXTRA_BYTES,
    ) -> None:
        self.context = ServiceContext(store, clock, threads or Threads(), index_bytes)
        self.store = store
        self.metrics, self.events = self.context.metrics, self.context.events
        self.busy = BusyReplies()  # replies of the server to requests that reach no route
        self.posts = Posts(self.context)
        self.claims = Claims(self.context, max_deliveries)
        self.admission = AdmissionControl(self.context)
        self.legacy_batches = LegacyBatchEndpoint(self.context, self.claims)
        self.token_balance = TokenBalance(self.context.indexer.index, clock)
        self.judge = Judge(self.metrics, self.events, clock)
        self._roster = run_state.Roster()
        self._held: dict[tuple[str, str], int] = {}  # (run, server) -> newest version reported

    @property
    def run(self) -> RunRecord:
        return self.context.run

    def resumed(self) -> str | None:
        """Line about the run found in the store; None if it was empty."""
        stats = self.store.stats()
        if self.run == RunRecord() and not stats.group_counts:
            return None
        return (
            f"run {self.run.run_id[:8]} {self.run.state.value}: {stats.groups_held} groups held, "
            f"{stats.batches_acked} batches acked, policy version {self.run.policy_version}"
        )

    def close(self) -> None:
        """End the streams of events and close the store."""
        self.events.close()
        self.posts.close()
        self.context.indexer.close()
        self.store.close()

    # --- the trainer ----------------------------------------------------------------

    async def register(self, body: wire.Registration) -> RunView:
        """Register a trainer for the run. Trainers that registered earlier become stale.

        Raises:
            RunTaken, CannotRewind, StaleGeneration: nothing changed, no trainer was fenced.
        """
        context, run_id, now = self.context, ids.source().hex, self.context.clock()
        await context.run_cache.refresh_if_old()
        if run_state.is_repeated(self.run, body):
            return context.view
        if body.holds is not None:
            after = await context.threads.reads.run(self.store.ask, After(body.holds))
            run_state.require_rewindable(*after, body.holds)
        trained = (await context.queue_stats.read()).sequences_trained

        anew = False

        def join(run: RunRecord) -> RunRecord:
            nonlocal anew
            if run_state.is_repeated(run, body):
                return run
            anew = run_state.starts_over(run, body, trained)
            life = run.trainer.life if run.trainer else ""
            run_state.require_free(run, body, context.liveness.silent_s(life), now)
            return run_state.register(run, body, run_id, trained, now)

        view = await context.run_cache.update(join, fence=True)
        if anew:
            await context.threads.writes.run(self.store.do, begin_run)
            context.indexer.begin_run()
        self.events.publish(
            "registered", generation=view.generation, batch_size=body.batch_size
        )
        return view

    async def announce_version(self, held: wire.PolicyVersion) -> int:
        """Record that all servers hold a version; returns the latest version."""
        await self.context.run_cache.refresh_if_old()
        view = await self.context.run_cache.update(
            lambda run: run_state.announce(run, held.version, held.incarnation, held.ended)
        )
        self.events.publish("policy_version", version=view.run.policy_version)
        return view.run.policy_version

    async def reset(self) -> None:
        """Delete the run and all groups. Ids of its environments become invalid."""
        context = self.context
        document = await context.threads.reads.run(self.store.do, reset_run)
        view = RunView(RunRecord(), document.revision, document.generation)
        context.run_cache.apply(view)
        context.indexer.begin_run()
        self.posts.forget()
        context.on_groups_removed()
        self.events.publish("reset")

    # --- environments ---------------------------------------------------------------

    async def register_env(
        self, body: wire.RegisterEnv, caller: Caller | None = None
    ) -> tuple[EnvEntry, RunView] | None:
        """The new entry, or None while the trainer has not started.

        Raises:
            ConfigError: too many environments.
        """
        require_env(caller, body.desired_name)
        context = self.context
        await context.run_cache.refresh_if_old()
        if context.run.state is not RunState.STARTED and context.store.shared:
            await context.run_cache.refresh()
        if context.run.state is not RunState.STARTED:
            return None
        joined, now = list[EnvEntry](), context.clock()
        replaced: set[int] = set()

        def join(run: RunRecord) -> RunRecord:
            joined.clear()
            replaced.clear()
            if run.state is not RunState.STARTED:  # reset meanwhile
                return run
            before = run
            run, entry = run_state.join(run, body, self._live_of, self._roster, now)
            joined.append(entry)
            replaced.update(run_state.gone(before, run) if body.seat else ())
            return run

        view = await context.run_cache.update(join)
        if not joined:
            return None
        await context.touch(joined[0].env_id)
        self.events.publish("env_joined", env=joined[0].env_id, name=joined[0].wandb_name)
        for env_id in sorted(replaced):
            self.events.publish("env_left", env=env_id)
        if replaced:
            await context.free_absent()
        return joined[0], view

    def _live_of(self, run: RunRecord) -> set[int]:
        return {env.env_id for env in self.context.liveness.live(run.envs, run.seen)}

    async def disconnect_env(
        self, who: wire.EnvIdentifier, caller: Caller | None = None
    ) -> None:
        """Disconnect an environment, which ends its share of the batches."""
        entry = await self.context.find_env(who.env_id, who.run_id)
        require_env(caller, entry.desired_name)

        def leave(run: RunRecord) -> RunRecord:
            run_state.require_run(run, who.run_id)
            return run_state.leave(run, who.env_id)

        await self.context.run_cache.update(leave)
        self.events.publish("env_left", env=who.env_id)
        await self.context.free_absent()

    async def env_status(
        self, who: wire.EnvIdentifier, caller: Caller | None = None
    ) -> wire.EnvStatus:
        """The status by which an environment sets its pace."""
        entry = await self._calling_env(who, caller)
        trainer = self.context.run.registration
        stats = await self.context.queue_stats.read()
        supply = self.context.queue_stats.supply(
            stats, self.context.live(), trainer.batch_size
        )
        step = trainer.starting_step + stats.delivered
        [steered] = steered_entries(self.run, [entry])
        answer = env_status(steered, supply, step, self.context.run.policy_version)
        answer.max_staleness = trainer.max_staleness
        answer.incarnation = self.context.run.announced_by
        if stats.batches_open > 1:
            answer.batches_open = stats.batches_open
        owed = trainer.batch_size * (entry.min_batch_allocation or 0.0)
        return follow(answer, steering_of(self.run, entry), owed / max(1, entry.group_size))

    async def steer(self, asked: wire.SteerRequest) -> dict[str, dict[str, object]]:
        """Set weight, state or limit of an environment; returns what is set for all.

        Raises:
            UnknownEnv: no environment of this run has the name.
        """
        await self.context.run_cache.refresh_if_old()
        view = await self.context.run_cache.update(lambda run: steer(run, asked))
        changes = asked.model_dump(exclude={"env"}, exclude_unset=True)
        if changes:
            env = registered_name(view.run, asked.env)
            self.events.publish("steered", env=env, **changes)
        return described(view.run.steering)

    async def admit(
        self, asked: wire.AdmissionRequest, caller: Caller | None = None
    ) -> wire.AdmissionReply:
        """How many rollouts of an environment may begin."""
        entry = await self._calling_env(asked, caller)
        return await self.admission.admit(asked, entry, caller)

    async def _calling_env(
        self, who: wire.EnvIdentifier | wire.AdmissionRequest, caller: Caller | None
    ) -> EnvEntry:
        """The calling environment, which counts as live from now on."""
        await self.context.run_cache.refresh_if_old()
        entry = await self.context.find_env(who.env_id, who.run_id)
        require_env(caller, entry.desired_name)
        await self.context.touch(entry.env_id)
        return entry

    async def report_step(self, report: wire.StepReport, caller: Caller | None = None) -> bool:
        """Index the numbers of a step; False if the index is too far behind."""
        name = self.run.trainer.run_name if self.run.trainer else ""
        if report.role == "env":
            if report.env_id is None:
                raise ConfigError("env_id: missing; the reply to /register-env has it")
            who = wire.EnvIdentifier(env_id=report.env_id, run_id=report.run_id)
            name = (await self._calling_env(who, caller)).wandb_name
        step = StepFact(
            role=report.role,
            name=name,
            step=report.step,
            at=self.context.clock(),
            values=report.values,
            batch_no=report.batch_no,
        )
        return self.context.indexer.submit(step)

    async def report_drops(
        self, report: wire.DropReport, sample: ParsedGroup | None, caller: Caller | None = None
    ) -> bool:
        """Index groups that an environment dropped; False if the index is too far behind."""
        entry = await self._calling_env(report, caller)
        fact = DropFact(entry.wandb_name, report.reason, report.count, self.context.clock())
        if sample is not None:
            fact = replace(fact, sample=bytes(sample.payload), facts=sample.facts)
        return self.context.indexer.submit(fact)

    async def report_account(
        self, report: AccountReport, caller: Caller | None = None
    ) -> None:
        """Keep the counters of tokens of a process in the run document."""
        entry = await self._calling_env(report, caller)
        now = self.context.clock()
        await self.context.run_cache.update(
            lambda run: with_report(run, report, entry.wandb_name, now)
        )

    def heartbeat(self, beat: wire.Heartbeat) -> None:
        """Record a heartbeat, and index the first report of a version by a server."""
        self.context.liveness.record_heartbeat(beat)
        for state in beat.servers:
            known, version = (self.run.run_id, state.url), state.version
            if len(self._held) > MAX_HELD:  # entries of gone servers; the rest is noted again
                self._held.clear()
            if version is not None and version > self._held.get(known, -1):
                self._held[known] = version
                at = self.context.clock()
                self.context.indexer.submit(WeightFact(state.url, version, at))

    # --- status ------------------------------------------------------------------------

    def run_facts(self) -> RunFacts:
        """Facts about the run that the explorer shows."""
        return RunFacts.of(self.run, live=True)

    async def current_step(self) -> int:
        """Starting step plus the batches delivered to this trainer generation."""
        trainer = self.context.run.trainer
        if trainer is None:
            return 0
        return trainer.starting_step + (await self.context.queue_stats.read()).delivered

    async def status(self) -> wire.RunStatus:
        """The status of the run, with the verdict on it."""
        began = monotonic()
        status = await self.figures()
        answer_s = monotonic() - began
        tokens = await self.token_balance.report(self.run, status.batches_acked)
        status = status.model_copy(update={"tokens": tokens})
        verdict = await self.judge.verdict(status, answer_s)
        return status.model_copy(update={"verdict": verdict})

    async def figures(self) -> wire.RunStatus:
        """The status of the run without a verdict, for scrapers."""
        await self.context.run_cache.refresh_if_old()
        stats = await self.context.queue_stats.read()
        run = self.run
        sequences = stats.sequences_held
        participants = self.context.liveness.participants()
        reason, warnings = await self._blocked_reason()
        return wire.RunStatus(
            current_step=await self.current_step(),
            queue_size=stats.groups_held,
            state=run.state.value,
            run_id=run.run_id,
            policy_version=run.policy_version,
            queued_sequences=sequences[GroupState.PENDING],
            leased_sequences=sequences[GroupState.LEASED],
            buffered_sequences=sequences[GroupState.BUFFERED],
            batches_acked=stats.batches_acked,
            blocked_reason=reason and with_stalled(reason, participants),
            warnings=warnings,
            participants=participants,
            stalled=stalled(participants),
            batches_open=stats.batches_open,
            batches_dead=stats.batches_dead,
            dropped_groups=stats.totals_of(GroupState.DROPPED).groups,
            dead_groups=stats.totals_of(GroupState.DEAD).groups,
            retained_bytes=stats.retained_bytes,
            disk_bytes=stats.disk_bytes,
            max_bytes=self.context.store.max_bytes,
            connections_refused=self.busy.count,
            staleness=self.context.metrics.staleness(),
            shares=self._shares(stats),
            open_batches=[
                wire.OpenBatch(
                    no=no, sequences=n_seq, deliveries=n, lease_s=until - self.context.clock()
                )
                for no, n_seq, n, until in stats.leases
            ],
            ended_step=run.ended_step,
            num_steps=None if run.trainer is None else run.trainer.num_steps,
            ages_s=self.events.ages_s(),
            usual_step_s=self.events.usual_step_s(),
            refusal=self.context.refusal,
            uncertified=dict(self.posts.certification.counts),
            index_skipped=self.context.indexer.skipped,
            index_unfit=self.context.indexer.unfit,
            thread_failures=(
                {"indexer": bugs} if (bugs := self.context.indexer.failures) else {}
            ),
        )

    async def _blocked_reason(self) -> tuple[str | None, list[str]]:
        """Why the next claim would get no batch, or None; and what starves."""
        run = self.run
        if run.trainer is None:
            return "no trainer has registered: waiting for POST /register", []
        if run.state is not RunState.STARTED:
            return "waiting for the trainer to ask for its first batch", []
        return await self.context.obstacles()

    def _shares(self, stats: StoreStats) -> list[wire.EnvShare]:
        """Requested and realised shares of the trained tokens, by environment."""
        run, live = self.run, self.context.live()
        known = {env.env_id: env for env in run.envs}
        buffered = Counter[int | None]()
        for count in stats.group_counts:
            buffered[count.env] += count.sequences * (count.state is GroupState.BUFFERED)
        in_force = weights_in_force(run)
        # An environment that starts no rollout has no share, and the weight 0.
        weights: dict[int | None, float] = {env.env_id: env.weight for env in live}
        shared = {env: weight for env, weight in weights.items() if weight > 0} or weights
        realised = fair_share.realised_shares(fair_share.decode(stats.fair_share))
        if None in realised or any(
            group_count.env is None for group_count in stats.group_counts
        ):
            weights[None] = shared[None] = fair_share.DEFAULT_WEIGHT
        targets = fair_share.target_shares(shared) if shared else {}
        shown = sorted(
            weights.keys() | realised.keys(), key=lambda env: -1 if env is None else env
        )
        return [
            wire.EnvShare(
                env_id=env,
                name="" if env is None else known[env].wandb_name,
                weight=in_force.get(env, fair_share.DEFAULT_WEIGHT),
                asked=targets.get(env, 0.0),
                realised=realised.get(env, 0.0),
                connected=env in weights,
                buffered=buffered[env],
                **({} if env is None else _steering_shown(run, known[env])),
            )
            for env in shown[:MAX_SHARES]
            if env is None or env in known
        ]


def _steering_shown(run: RunRecord, env: EnvEntry) -> dict[str, Any]:
    """Settings of an operator for an environment, as fields of its share."""
    steering = steering_of(run, env)
    return {
        "state": steering.state,
        "max_rollouts": steering.max_rollouts,
        "own_weight": None if steering.weight is None else env.weight,
    }
