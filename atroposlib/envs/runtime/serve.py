"""``serve``: roll out for a trainer until the run is complete.

    register ---> ask the queue's state ---> start as many rollouts as are wanted --.
       ^  (waits        ^    |   |           and admitted                           |
       |   for the      |    |   '-- evaluation due: start it                       |
       |   trainer)     |    '-- run complete or signal: drain, evaluate, disconnect|
       |                '----- at once when a rollout or a send ends, else 0.1 s ---'
       '-- the API does not know us any more: register again

One rollout more than the queue has room for would be trained on late, so sends accepted
while the state was asked for are counted as queued.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from enum import Enum
from typing import Any

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.rollout import pacing
from atroposlib.envs.rollout.pool import Job, repeat
from atroposlib.envs.runtime.admission import Admission
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.evaluation import Evaluations
from atroposlib.envs.runtime.registration import Membership, identity_of
from atroposlib.envs.runtime.shutdown import Stopping, StopRequested
from atroposlib.envs.runtime.wait_status import Waiting
from atroposlib.envs.settings.config import FAILING_BACKOFF, HEARTBEAT_S, STATUS_POLL_S
from atroposlib.errors import AtroposError, NotRegistered, UnknownEnv, boundary
from atroposlib.wire import EnvIdentifier, EnvStatus, Heartbeat

logger = logging.getLogger(__name__)
GOODBYE_S = 5.0  # bound of the calls that only tidy up
MOST_WAIT_CHARS = 400  # of a heartbeat's waiting_on


class Phase(str, Enum):
    """What the environment does now, as its heartbeat says it."""

    WAITING_FOR_TRAINER = "waiting for trainer"
    ROLLOUT = "rollout"
    PAUSED = "paused: queue full"
    NOT_ADMITTED = "paused: not admitted"
    EVALUATING = "evaluating"
    DRAINING = "draining"


class Serve:
    """The life of one environment process in one or more runs."""

    def __init__(self, env: EnvRuntime) -> None:
        self.env = env
        self.waiting = Waiting(env.label())
        self.client = AsyncRolloutClient(
            env.config.rollout_server_url,
            give_up_after_s=env.config.api_timeout_s,
            on_wait=self.waiting.waits,
            binary=True,
        )
        # The same before and after joining, and another one for every process.
        self.name = f"{env.label()}-{uuid.uuid4().hex[:6]}"
        self.phase = Phase.WAITING_FOR_TRAINER
        self.stopping = Stopping()
        self.complete = False  # every batch of the run is delivered or can be filled
        self.status: EnvStatus | None = None
        self._queue = pacing.Queue(0)
        self.membership = Membership(env, self.client, self.stopping, self.waiting.waits)
        self.admission = Admission(self.client)
        self.evaluations = Evaluations(env, lambda: self.policy_version)
        self._heart: asyncio.Future[None] | None = None
        self._next: Job | None = None  # wanted, and not admitted yet

    @property
    def waiting_on(self) -> str | None:
        """What it waits for; None: nothing."""
        return self.waiting.on

    @property
    def policy_version(self) -> int:
        """The version that the servers held when the API was last asked."""
        return self.status.policy_version if self.status else 0

    async def run(self) -> None:
        """Serve until the run is complete or SIGTERM or SIGINT asks to stop.

        Raises:
            RolloutApiUnavailable: the API stayed away longer than ``api_timeout_s``.
            NotRegistered: the trainer took nothing for ``trainer_timeout_s`` seconds.
            AtroposError: ``max_failures_in_a_row`` rollouts failed; the last of their errors.
        """
        self._heart = asyncio.ensure_future(repeat(HEARTBEAT_S, self.beat))
        self.stopping.listen()
        try:
            with boundary(self.env.label(), None, "setup"):
                await self.stopping.unless_asked(self.env.setup())
            await self.membership.join_first()
            if self.env.config.eval_at_start:
                self.evaluations.due = self.env.curr_step
            while not self.complete:
                await self._turn()
            await self._drain()
            self.phase = Phase.EVALUATING
            last = self.evaluations.at_the_end(self._weights_of)
            await self.stopping.unless_asked(last)
        except StopRequested:
            logger.info("%s: asked to stop", self.env.label())
        finally:
            await self._leave()

    # --- one turn of the loop ---------------------------------------------------------

    async def _turn(self) -> None:
        env, begun = self.env, time.monotonic()
        try:
            await self._ask_status()
            await env.env_step_checks()
            if self._run_is_complete():
                self.complete = True
                return
            if self.status is not None:
                self.evaluations.start_if_due(self.status)
            await env.add_train_workers()
        except (UnknownEnv, NotRegistered):
            await self._join_again()
            return
        self._name_phase()
        env.mainloop_timings.append(time.monotonic() - begun)
        self._raise_if_hopeless()
        await self.stopping.unless_asked(env.pool.wait_for_change(STATUS_POLL_S))
        errors = env.pool.errors_in_a_row
        pause = FAILING_BACKOFF.pause_s(errors - env.max_num_workers)
        if pause:
            self.waiting.waits(f"{errors} rollouts failed in a row, next in {pause:.1f} s")
            await self.stopping.pause(pause)

    async def _join_again(self) -> None:
        self.phase = Phase.WAITING_FOR_TRAINER
        self.admission.forget()
        await self.membership.rejoin(self.env.registration)

    async def _ask_status(self) -> None:
        env = self.env
        registration, accepted = env.registration, env.accepted_groups
        who = identity_of(registration)
        await self.stopping.unless_asked(self.membership.refresh())
        status = await self.stopping.unless_asked(self.client.status_env(who))
        arrived_since = env.accepted_groups - accepted
        if self.status is None or status.env_weight != self.status.env_weight:
            await env.update_weight(status.env_weight)
        told = "policy_version" in status.model_fields_set
        env.server.announce_version(status.policy_version if told else None)
        self.status = status
        env.status_dict = status.model_dump()
        self._queue = pacing.Queue(
            queue_size=status.queue_size + arrived_since,
            self_queue_size=status.self_queue_size + arrived_since,
            unallocated_fraction=status.unallocated_fraction,
            max_group_size=status.max_group_size,
        )

    def _raise_if_hopeless(self) -> None:
        env, config, pool = self.env, self.env.config, self.env.pool
        if pool.fatal is not None:
            raise pool.fatal
        if self._heart is not None and self._heart.done():
            self._heart.result()  # it only ends by an error of ours
        if pool.last_error is not None:
            gone = pool.servers_gone_since
            if gone is not None and time.monotonic() - gone > config.api_timeout_s:
                raise pool.last_error
            if pool.mistakes_in_a_row >= config.max_failures_in_a_row:
                logger.error("%d rollouts failed in a row: stopping", pool.mistakes_in_a_row)
                raise pool.last_error
        if self._paused() and self.waiting.seconds() > config.trainer_timeout_s:
            waited = f"{self.waiting.seconds():.0f} s"
            raise NotRegistered(f"{env.label()} waited {waited} for {self.waiting_on}")

    async def step_checks(self) -> None:
        """Evaluation, checkpoint and metrics that a new step makes due."""
        env, status = self.env, self.status
        if status is None or status.current_step == env.curr_step:
            return
        old, new = env.curr_step, status.current_step
        if pacing.is_due(old, new, env.config.steps_per_eval):
            self.evaluations.due = new
        interval = env.checkpoint_interval
        if pacing.is_due(old, new, interval):
            with boundary(env.label(), f"step {new}", "save_checkpoint"):
                env.save_checkpoint(new // interval * interval)
        env.curr_step = new
        if env.items_sent_this_step >= env.config.min_items_sent_before_logging:
            with boundary(env.label(), f"step {new}", "wandb_log"):
                await env.wandb_log({})
            env.items_sent_this_step = 0

    def rollouts_wanted(self) -> int:
        """How many rollouts should be under way now."""
        evaluating = self.evaluations.task is not None
        return pacing.rollouts_wanted(self.env.limits(), self._queue, evaluating=evaluating)

    async def add_workers(self) -> None:
        """Start rollouts up to the number wanted and admitted, oldest waiting items first."""
        env, wanted = self.env, self.rollouts_wanted()
        env.workers_added_list.append(wanted - env.pool.busy)
        who = identity_of(env.registration)
        settled = self.admission.settle(env.pool.jobs, who, env.config.group_size)
        await self.stopping.unless_asked(settled)
        while env.pool.busy < wanted and not self.stopping.asked.is_set():
            job = self._next or env.pool.next_waiting() or await self._new_job()
            if job is None:
                return
            self._next = job  # it is not lost if this call is interrupted
            if not await self.stopping.unless_asked(self._admits(job, who)):
                return
            self._next = None
            env.pool.start(job)

    async def _new_job(self) -> Job | None:
        with boundary(self.env.label(), None, "get_next_item"):
            item = await self.env.get_next_item()
        return None if item is None else Job(item)

    async def _admits(self, job: Job, who: EnvIdentifier) -> bool:
        status = self.status
        return await self.admission.admits(
            job.uuid,
            who,
            self.env.config.group_size,
            bounded=status is not None and status.max_staleness is not None,
            idle=self.env.pool.busy == 0,
        )

    def _run_is_complete(self) -> bool:
        env = self.env
        return pacing.should_stop(
            env.curr_step,
            self._queue.queue_size,
            env.config.group_size,
            env.config.batch_size,
            env.config.total_steps,
            (self.status.batches_open if self.status else None) or 1,
        )

    def _name_phase(self) -> None:
        pool, limit = self.env.pool, self.env.config.max_failures_in_a_row
        if self.evaluations.task is not None:
            self.phase = Phase.EVALUATING
            self.waiting.over()
        elif pool.busy == 0 and self.admission.refusal is not None:
            self.phase = Phase.NOT_ADMITTED
            self.waiting.waits(self.admission.refusal, usual=True)
        elif pool.busy == 0 and self.rollouts_wanted() == 0:
            self.phase = Phase.PAUSED
            self.waiting.waits("the trainer to take a batch", usual=True)
        else:
            self.phase = Phase.ROLLOUT
            if pool.barren_in_a_row >= limit:
                none = f"none in the last {pool.barren_in_a_row} items"
                self.waiting.waits(f"a group worth keeping: {none}")
            else:
                self.waiting.over()

    def _paused(self) -> bool:
        return self.phase in (Phase.PAUSED, Phase.NOT_ADMITTED)

    async def _weights_of(self, step: int) -> None:
        """Wait, within a bound, until the servers hold the weights that ``step`` gave."""
        wait_s = self.env.config.final_weights_timeout_s
        begun = time.monotonic()
        while self.status is not None and not pacing.weights_have_settled(
            step, step, self.status.policy_version, self.status.self_queue_size
        ):
            self.waiting.waits(f"the weights of step {step}")
            if time.monotonic() - begun > wait_s:
                logger.warning("evaluating without them: waited %.0f s", wait_s)
                break
            await self.stopping.pause(STATUS_POLL_S)
            try:
                await self._ask_status()
            except (UnknownEnv, NotRegistered):
                break  # the run is over for the API; the servers still hold its weights
        self.waiting.over()

    # --- heartbeat, leaving -------------------------------------------------------------

    async def beat(self) -> None:
        """Tell the API what this environment does; never waits for an absent one."""
        env = self.env
        details: dict[str, Any] = {
            **env.tally.totals(),
            "rollouts_running": len(env.pool.running),
            "rollouts_failed": env.pool.counts["failed"] + env.pool.counts["timed_out"],
        }
        waits = self.waiting_on[:MOST_WAIT_CHARS] if self.waiting_on else None
        await self.client.heartbeat(
            Heartbeat(
                role="env",
                name=self.name,
                phase=self.phase.value,
                waiting_on=waits,
                details=details,
            )
        )

    async def _drain(self) -> None:
        self.phase = Phase.DRAINING
        self.waiting.over()
        pool = self.env.pool
        pool.cancel_unfinished()
        bound = 0.0 if self.stopping.in_a_hurry else self.env.config.drain_timeout_s
        if late := await pool.drain(bound):
            logger.error("%d sends did not finish within the drain timeout", late)

    async def _leave(self) -> None:
        env = self.env
        await self._drain()
        for task in (self._heart, self.evaluations.task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        try:
            if env.sender is not None:
                await asyncio.wait_for(self._say_goodbye(), GOODBYE_S)
                with boundary(env.label(), "the end", "wandb_log"):
                    await env.wandb_log({})
        except (AtroposError, asyncio.TimeoutError) as error:
            # An error that ends the run is on its way already; this one must not hide it.
            logger.error("while leaving: %s", error or "the rollout API does not answer")
        finally:
            logger.info("%s leaves: %s", env.label(), env.tally.totals())
            await env.close()
            await self.client.close()

    async def _say_goodbye(self) -> None:
        who = identity_of(self.env.registration)
        await self.beat()
        await self.admission.settle((), who, self.env.config.group_size)
        await self.client.disconnect_env(who)
