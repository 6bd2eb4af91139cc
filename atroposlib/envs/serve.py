"""``serve``: roll out for a trainer until the run is complete.

    register ---> ask the queue's state ---> start as many rollouts as are wanted --.
       ^  (waits        ^    |   |                                                  |
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
from atroposlib.envs import pacing
from atroposlib.envs.constants import HEARTBEAT_S, MAX_BACK_OFF_S, STATUS_POLL_S
from atroposlib.envs.membership import Membership
from atroposlib.envs.runtime import EnvRuntime
from atroposlib.envs.stopping import Stopping, StopRequested
from atroposlib.envs.workers import Job, repeat
from atroposlib.errors import AtroposError, UnknownEnv, boundary
from atroposlib.wire import EnvIdentifier, EnvRegistered, EnvStatus, Heartbeat

logger = logging.getLogger(__name__)
GOODBYE_S = 5.0  # bound of the calls that only tidy up


class Phase(str, Enum):
    """What the environment does now, as its heartbeat says it."""

    WAITING_FOR_TRAINER = "waiting for trainer"
    ROLLOUT = "rollout"
    PAUSED = "paused: queue full"
    EVALUATING = "evaluating"
    DRAINING = "draining"


class Serve:
    """The life of one environment process in one or more runs."""

    def __init__(self, env: EnvRuntime) -> None:
        self.env = env
        self.client = AsyncRolloutClient(
            env.config.rollout_server_url,
            give_up_after_s=env.config.api_give_up_after,
            on_wait=self._waits,
        )
        # The same before and after joining, and another one for every process.
        self.name = f"{env.label()}-{uuid.uuid4().hex[:6]}"
        self.phase = Phase.WAITING_FOR_TRAINER
        self.waiting_on: str | None = None
        self.stopping = Stopping()
        self.complete = False  # every batch of the run is delivered or can be filled
        self.status: EnvStatus | None = None
        self._queue = pacing.Queue(0)
        self.membership = Membership(env, self.client, self.stopping, self._waits)
        self._heart: asyncio.Future[None] | None = None
        self._eval_task: asyncio.Task[None] | None = None
        self._eval_due: int | None = None  # step whose weights are to be evaluated

    async def run(self) -> None:
        """Serve until the run is complete or SIGTERM or SIGINT asks to stop.

        Raises:
            RolloutApiUnavailable: the API stayed away longer than ``api_give_up_after``.
            AtroposError: ``max_failures_in_a_row`` rollouts failed; the last of their errors.
        """
        self._heart = asyncio.ensure_future(repeat(HEARTBEAT_S, self.beat))
        self.stopping.listen()
        try:
            with boundary(self.env.label(), None, "setup"):
                await self.stopping.unless_asked(self.env.setup())
            await self.membership.join_first()
            if self.env.config.eval_at_start:
                self._eval_due = self.env.curr_step
            while not self.complete:
                await self._turn()
            await self._drain()
            await self.stopping.unless_asked(self._evaluate_at_the_end())
        except StopRequested:
            logger.info("%s: asked to stop", self.env.label())
        finally:
            await self._leave()

    # --- one turn of the loop ---------------------------------------------------------

    async def _turn(self) -> None:
        env, begun = self.env, time.monotonic()
        try:
            await self._ask_status()
        except UnknownEnv:
            self.phase = Phase.WAITING_FOR_TRAINER
            await self.membership.rejoin(env.registration)
            return
        await env.env_step_checks()
        if self._run_is_complete():
            self.complete = True
            return
        self._start_due_evaluation()
        await env.add_train_workers()
        self._name_phase()
        env.mainloop_timings.append(time.monotonic() - begun)
        errors, config = env.pool.errors_in_a_row, env.config
        if env.pool.fatal is not None:
            raise env.pool.fatal
        if self._heart is not None and self._heart.done():
            self._heart.result()  # it only ends by an error of ours
        if errors >= config.max_failures_in_a_row and env.pool.last_error is not None:
            logger.error("%d rollouts failed in a row: stopping", errors)
            raise env.pool.last_error
        await self.stopping.unless_asked(env.pool.wait_for_change(STATUS_POLL_S))
        pause = pacing.back_off_s(errors, env.max_num_workers, MAX_BACK_OFF_S)
        if pause:
            self._waits(f"{errors} rollouts failed in a row, next in {pause:.1f} s")
            await self.stopping.pause(pause)

    async def _ask_status(self) -> None:
        env = self.env
        registration, accepted = env.registration, env.accepted_groups
        who = EnvIdentifier(env_id=registration.env_id, run_id=registration.run_id)
        status = await self.stopping.unless_asked(self.client.status_env(who))
        arrived_since = env.accepted_groups - accepted
        if self.status is None or status.env_weight != self.status.env_weight:
            await env.update_weight(status.env_weight)
        self.status = status
        env.status_dict = status.model_dump()
        self._queue = pacing.Queue(
            queue_size=status.queue_size + arrived_since,
            self_queue_size=status.self_queue_size + arrived_since,
            unallocated_fraction=status.unallocated_fraction,
            max_group_size=status.max_group_size,
        )

    async def step_checks(self) -> None:
        """Evaluation, checkpoint and metrics that a new step makes due."""
        env, status = self.env, self.status
        if status is None or status.current_step == env.curr_step:
            return
        old, new = env.curr_step, status.current_step
        if pacing.is_due(old, new, env.config.steps_per_eval):
            self._eval_due = new
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
        evaluating = self._eval_task is not None
        return pacing.rollouts_wanted(self.env.limits(), self._queue, evaluating=evaluating)

    async def add_workers(self) -> None:
        """Start rollouts up to the number wanted, oldest waiting items first."""
        env, wanted = self.env, self.rollouts_wanted()
        env.workers_added_list.append(wanted - env.pool.busy)
        while env.pool.busy < wanted and not self.stopping.asked.is_set():
            job = env.pool.next_waiting()
            if job is None:
                with boundary(env.label(), None, "get_next_item"):
                    item = await env.get_next_item()
                if item is None:
                    return
                job = Job(item)
            env.pool.start(job)

    def _run_is_complete(self) -> bool:
        env = self.env
        return pacing.should_stop(
            env.curr_step,
            self._queue.queue_size,
            env.config.group_size,
            env.config.batch_size,
            env.config.total_steps,
        )

    def _name_phase(self) -> None:
        barren, limit = self.env.pool.barren_in_a_row, self.env.config.max_failures_in_a_row
        self.waiting_on = None
        if self._eval_task is not None:
            self.phase = Phase.EVALUATING
        elif self.env.pool.busy == 0 and self.rollouts_wanted() == 0:
            self.phase = Phase.PAUSED
            self.waiting_on = "the trainer to take a batch"
        else:
            self.phase = Phase.ROLLOUT
            if barren >= limit:
                self.waiting_on = f"a group worth keeping: none in the last {barren} items"

    @property
    def policy_version(self) -> int:
        """The version that the servers held when the API was last asked."""
        return self.status.policy_version if self.status else 0

    # --- evaluation -------------------------------------------------------------------

    def _start_due_evaluation(self) -> None:
        if self._eval_task is not None and self._eval_task.done():
            self._eval_task = None
        due, status = self._eval_due, self.status
        if due is None or status is None or self._eval_task is not None:
            return
        if pacing.weights_have_settled(
            due, self.env.curr_step, status.policy_version, status.queue_size
        ):
            self._eval_due = None
            self._eval_task = asyncio.ensure_future(self._evaluate(due))
            self.env.eval_runner = self._eval_task

    async def _evaluate(self, step: int) -> None:
        env = self.env
        before = self.policy_version
        env.measured_at = lambda: {
            "eval_step": step,
            "eval_policy_version": before,
            "eval_policy_version_at_end": self.policy_version,
        }
        try:
            with boundary(env.label(), f"step {step}", "evaluate"):
                await env.evaluate()
        except AtroposError as error:
            # Training data does not depend on it, so the run goes on; the failure is seen.
            logger.error("%s", error, exc_info=error)
            env.logbook.emit({"eval/failed": 1}, env.curr_step)
        finally:
            env.pool.changed.set()

    async def _evaluate_at_the_end(self) -> None:
        config, step = self.env.config, self.env.curr_step
        if self._eval_task is not None:
            self.phase = Phase.EVALUATING
            await self._eval_task
        if not config.eval_at_end and self._eval_due is None:
            return
        until = time.monotonic() + config.final_weights_wait
        while self.status is not None and not pacing.weights_have_settled(
            step, step, self.status.policy_version, self.status.self_queue_size
        ):
            self._waits(f"the weights of step {step}")
            if time.monotonic() > until:
                logger.warning("evaluating without them: waited %.0f s", self.waited(until))
                break
            await self.stopping.pause(STATUS_POLL_S)
            try:
                await self._ask_status()
            except UnknownEnv:
                break  # the run is over for the API; the servers still hold its weights
        self.phase, self.waiting_on = Phase.EVALUATING, None
        await self._evaluate(step)

    def waited(self, until: float) -> float:
        """Seconds spent on the final weights so far."""
        return self.env.config.final_weights_wait + time.monotonic() - until

    # --- waiting, leaving -------------------------------------------------------------

    def _waits(self, what: str) -> None:
        what = what.removeprefix("waiting for ")
        if self.waiting_on is None or self.waiting_on[:20] != what[:20]:
            logger.info("%s waits for %s", self.env.label(), what)
        self.waiting_on = what

    async def beat(self) -> None:
        """Tell the API what this environment does; never waits for an absent one."""
        env = self.env
        details: dict[str, Any] = {
            **env.tally.totals(),
            "rollouts_running": len(env.pool.running),
            "rollouts_failed": env.pool.counts["failed"] + env.pool.counts["timed_out"],
        }
        waits = self.waiting_on[:400] if self.waiting_on else None
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
        self.phase, self.waiting_on = Phase.DRAINING, None
        pool = self.env.pool
        pool.cancel_unfinished()
        late = await pool.drain(
            0.0 if self.stopping.in_a_hurry else self.env.config.drain_timeout
        )
        if late:
            logger.error("%d sends did not finish within the drain timeout", late)

    async def _leave(self) -> None:
        env = self.env
        await self._drain()
        for task in (self._heart, self._eval_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        try:
            if env.sender is not None:
                await asyncio.wait_for(self._disconnect(env.sender.registration), GOODBYE_S)
                with boundary(env.label(), "the end", "wandb_log"):
                    await env.wandb_log({})
        except (AtroposError, asyncio.TimeoutError) as error:
            # An error that ends the run is on its way already; this one must not hide it.
            logger.error("while leaving: %s", error or "the rollout API does not answer")
        finally:
            await env.close()
            await self.client.close()

    async def _disconnect(self, registration: EnvRegistered) -> None:
        await self.beat()
        await self.client.disconnect_env(
            EnvIdentifier(env_id=registration.env_id, run_id=registration.run_id)
        )
