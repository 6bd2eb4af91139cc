"""``serve``: roll out for a trainer until the run is complete.

    register ---> read the queue's status --> start as many rollouts as are wanted -.
       ^  (waits      ^    |   |              and admitted                          |
       |   for the    |    |   '-- evaluation due: start it                         |
       |   trainer)   |    '-- run complete or signal: drain, evaluate, disconnect  |
       |              '----- at once when a rollout or a send ends, else 0.1 s -----'
       '-- the API does not know this environment any more: register again

A rollout beyond the queue's capacity would be trained on late, so sends that the API accepts
after the request of the status count as queued.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from enum import Enum

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.journal.journal_opening import (
    journal_folder,
    open_journal,
    unpack_groups,
)
from atroposlib.envs.rollout import pacing
from atroposlib.envs.rollout.pool import RolloutTask, repeat
from atroposlib.envs.runtime.admission import RolloutAdmission
from atroposlib.envs.runtime.env_runtime import EnvRuntime, name_of
from atroposlib.envs.runtime.registration import RunRegistration
from atroposlib.envs.runtime.sender import GroupSender
from atroposlib.envs.runtime.server_watch import ServerWatch
from atroposlib.envs.runtime.startup import only_checks, require_trainable
from atroposlib.envs.runtime.waits import Shutdown, StopRequested, Waits
from atroposlib.envs.settings.config import HEARTBEAT_S, STATUS_POLL_S
from atroposlib.envs.settings.identity import checked_identity
from atroposlib.errors import (
    AtroposError,
    NotRegistered,
    UnknownEnv,
    boundary,
)
from atroposlib.wire import MOSTLY_DROPPED, EnvSource, EnvStatus, Heartbeat
from atroposlib.wire.status import ServerState, WaitReport

logger = logging.getLogger(__name__)
DISCONNECT_TIMEOUT_S = 5.0  # limit of the calls that only clean up
MAX_SERVERS = 64  # bound of a heartbeat


class EnvPhase(str, Enum):
    """The current activity of an environment, as heartbeats report it."""

    WAITING_FOR_TRAINER = "waiting for trainer"
    ROLLOUT = "rollout"
    MOSTLY_DROPPED = MOSTLY_DROPPED
    PAUSED = "paused: queue full"
    NOT_ADMITTED = "paused: not admitted"
    PAUSED_BY_OPERATOR = "paused by an operator"
    DRAINED_BY_OPERATOR = "drained by an operator"
    EVALUATING = "evaluating"
    DRAINING = "draining"


class Serve:
    """The life of an environment process in its runs."""

    def __init__(self, runtime: EnvRuntime) -> None:
        self.runtime = runtime
        self.waits = Waits(runtime.label())
        self.client = AsyncRolloutClient(
            runtime.config.rollout_server_url,
            give_up_after_s=runtime.config.api_timeout_s,
            on_wait=lambda reason: self.waits.start("api", reason),
            on_continue=lambda: self.waits.clear("api"),
            binary=True,
        )
        # A name per process, kept over registrations.
        self.name = f"{runtime.label()}-{uuid.uuid4().hex[:6]}"
        self.phase = EnvPhase.WAITING_FOR_TRAINER
        self.shutdown = Shutdown()
        self.complete = False  # every batch of the run is delivered or can be filled
        self.sender: GroupSender | None = None
        self._run = runtime.joined_run
        self._accepted_before = 0  # groups, at the request of the last status
        self.registration = RunRegistration(
            runtime.joined_run,
            self.client,
            self.shutdown,
            waiting=lambda reason: self.waits.start("trainer", reason),
            # Unfinished rollouts began under the weights and versions of the old run.
            new_run=self._begin_anew,
            source=lambda: checked_identity(
                type(runtime.env), runtime.env.config, name_of(runtime.env) or runtime.label()
            ),
        )
        self.admission = RolloutAdmission(self.client)
        self.servers = ServerWatch(runtime, self.client, self.shutdown)
        self.evaluation = runtime.periodic_evaluation
        runtime.metrics_logger.sinks.append(runtime.group_stats.reports)
        self._heart: asyncio.Future[None] | None = None
        self._next: RolloutTask | None = None  # wanted, and not admitted yet
        self._has_no_item = False

    def _source(self) -> EnvSource:
        env = self.runtime.env
        return checked_identity(type(env), env.config, name_of(env) or self.runtime.label())

    def _begin_anew(self) -> None:
        run_id = self._run.registration.run_id
        self.runtime.account.begin_run(run_id)
        self.runtime.journal.follow_run(run_id)
        self.runtime.pool.requeue_unfinished()

    @property
    def status(self) -> EnvStatus | None:
        """The last status from the API."""
        return self._run.status

    @property
    def waiting_on(self) -> str | None:
        """The reason of the outer wait; None without a wait."""
        return self.waits.on

    async def run(self) -> None:
        """Serve until the run is complete or SIGTERM or SIGINT requests a shutdown.

        Raises:
            RolloutApiUnavailable: the API was absent longer than ``api_timeout_s``.
            NotRegistered: the trainer took nothing for ``trainer_timeout_s`` seconds.
            AtroposError: ``max_failures_in_a_row`` rollouts failed; the last of their errors.
            ConfigError: with these settings no group would ever be trained.
        """
        require_trainable(self.runtime.config)
        if only_checks():
            return
        with self.runtime.account.count_replies():  # also in all tasks that begin here
            await self._serve()

    async def _serve(self) -> None:
        self._heart = asyncio.ensure_future(repeat(HEARTBEAT_S, self.beat))
        self.servers.begin()
        self.shutdown.listen()
        try:
            with boundary(self.runtime.label(), None, "setup"):
                await self.shutdown.or_shutdown(self.runtime.env.setup())
            if self.runtime.teacher is not None:
                await self.shutdown.or_shutdown(self.runtime.teacher.prepare())
            await self._join()
            await self.servers.wait_for_one(self.waits, self.runtime.config.api_timeout_s)
            if self.runtime.config.eval_at_start:
                self.evaluation.schedule(self._run.step)
            while not self.complete:
                await self._turn()
            await self._drain()
            self.phase = EnvPhase.EVALUATING
            at_end = self.runtime.config.eval_at_end
            last = self.evaluation.finish(self._weights_of, evaluate_at_end=at_end)
            await self.shutdown.or_shutdown(last)
        except StopRequested:
            logger.info("%s: stops on request", self.runtime.label())
        except AtroposError:
            self.runtime.metrics_logger.quiet()  # the error is the last line
            raise
        finally:
            await self._leave()

    async def _join(self) -> None:
        await self.runtime.env.register_env()
        await self.runtime.env.get_server_info()
        await self.runtime.env.setup_wandb()
        if self._run.step > 0:
            self.runtime.env.load_checkpoint()
        if self.runtime.curriculum.observes:
            self.runtime.curriculum.history.open(
                self._run.checkpoint_dir, self.runtime.label()
            )
        await self.shutdown.or_shutdown(self._go_on_from_journal())

    async def _go_on_from_journal(self) -> None:
        """Open the journal, post the groups that earlier lives left, then take the other items.

        In this order: an item whose groups cannot be posted is still under way.
        """
        runtime, run = self.runtime, self._run
        folder = journal_folder(run.checkpoint_dir, runtime.config)
        if folder is None:
            return
        journal, run_id = runtime.journal, run.registration.run_id
        left = await open_journal(journal, folder, run_id, runtime.config.journal_gb)
        if runtime.group_file is not None:
            await asyncio.to_thread(runtime.group_file.follow_earlier, left.names)
        for name, packed in left.groups:
            if self.sender is not None:
                await self.sender.send(unpack_groups(packed), None, run_id)
                journal.end_left(name)
        place = runtime.go_on_from(left)
        if place is not None:
            journal.note_place(place.next_place, place.open_places)

    async def register(self) -> None:
        """Join the run of the trainer, and send groups to it."""
        await self.registration.register()
        self.runtime.account.begin_run(self._run.registration.run_id)
        self.sender = GroupSender(
            self.client,
            lambda: self._run.registration,
            self.runtime.group_stats,
            group_size=self.runtime.config.group_size,
            re_register=self.registration.re_register,
            requeue=self.runtime.pool.backlog.append,
        )
        self._accepted_before = 0

    async def open_trackers(self) -> None:
        """Record in the trackers of the settings, under the names of the run."""
        if self.runtime.config.tracker_names:
            info = await self.client.wandb_info()
            self._run.name_records(info.get("project"), info.get("group"))
            self.runtime.metrics_logger.open_trackers(self._run)

    # --- a turn of the loop ----------------------------------------------------------

    async def _turn(self) -> None:
        runtime, started = self.runtime, time.monotonic()
        try:
            await runtime.env.get_status()
            await runtime.env.env_step_checks()
            if self.status is not None and pacing.should_stop(runtime.config, self.status):
                self.complete = True
                return
            if self.status is not None:
                self.evaluation.start_if_due(self.status)
            await runtime.env.add_train_workers()
        except (UnknownEnv, NotRegistered):
            await self._join_again()
            return
        self._update_phase()
        runtime.metrics_logger.mainloop_timings.append(time.monotonic() - started)
        self._raise_if_hopeless()
        await self.shutdown.or_shutdown(runtime.pool.wait_for_change(STATUS_POLL_S))
        await runtime.pause_while_failing(self.waits, self.shutdown)

    async def _join_again(self) -> None:
        self.phase = EnvPhase.WAITING_FOR_TRAINER
        self.admission.forget()
        await self.registration.re_register(self._run.registration)

    async def read_status(self) -> None:
        """Follow queue, step and weight."""
        runtime, sender, who = self.runtime, self.sender, self._run.identity
        await self.shutdown.or_shutdown(self.registration.refresh())
        accepted = sender.accepted_groups if sender is not None else 0
        status = await self.shutdown.or_shutdown(self.client.status_env(who))
        if self.status is None or status.env_weight != self.status.env_weight:
            await runtime.server.update_weight(status.env_weight)
        has_version = "policy_version" in status.model_fields_set
        runtime.server.announce_version(status.policy_version if has_version else None)
        self._run.follow(status)
        self._accepted_before = accepted

    def _queue(self) -> pacing.Queue:
        """The current queue or fuller: a send that ends during an await leaves no room twice.

        A group that arrives while the status is on its way counts twice, until the next
        status.
        """
        status, sender = self.status, self.sender
        if status is None or sender is None:
            return pacing.Queue(0)
        arrived_since = sender.accepted_groups - self._accepted_before
        return pacing.Queue(
            queue_size=status.queue_size + arrived_since,
            self_queue_size=status.self_queue_size + arrived_since,
            unallocated_fraction=status.unallocated_fraction,
            max_group_size=status.max_group_size,
        )

    def _raise_if_hopeless(self) -> None:
        runtime, config, pool = self.runtime, self.runtime.config, self.runtime.pool
        if pool.fatal is not None:
            raise pool.fatal
        if self._heart is not None and self._heart.done():
            self._heart.result()  # it ends by a programming error only
        if pool.last_error is not None:
            gone = pool.servers_gone_since
            if gone is not None and time.monotonic() - gone > config.api_timeout_s:
                raise pool.last_error
            if pool.consecutive_mistakes >= config.max_failures_in_a_row:
                logger.error(
                    "%d rollouts failed in a row: stopping", pool.consecutive_mistakes
                )
                raise pool.last_error
        paused = self.phase in (EnvPhase.PAUSED, EnvPhase.NOT_ADMITTED)
        waited_s = self.waits.seconds("trainer")
        if paused and waited_s > config.trainer_timeout_s:
            waited = f"{waited_s:.0f} s"
            raise NotRegistered(f"{runtime.label()} waited {waited} for {self.waiting_on}")

    async def step_checks(self) -> None:
        """Do what a new step makes due: evaluation, checkpoint, metrics."""
        runtime, run, status = self.runtime, self._run, self.status
        if status is None or status.current_step == run.step:
            return
        old, new = run.step, status.current_step
        if pacing.is_due(old, new, runtime.config.steps_per_eval):
            self.evaluation.schedule(new)
        interval = run.checkpoint_interval
        if pacing.is_due(old, new, interval):
            with boundary(runtime.label(), f"step {new}", "save_checkpoint"):
                runtime.env.save_checkpoint(new // interval * interval)
        run.reach(new)
        stats = runtime.group_stats
        if stats.kept_since_log >= runtime.config.min_items_sent_before_logging:
            with boundary(runtime.label(), f"step {new}", "wandb_log"):
                await runtime.env.wandb_log({})
            stats.restart_log()

    def rollouts_wanted(self) -> int:
        """How many rollouts should run now."""
        runtime, evaluating = self.runtime, self.evaluation.task is not None
        cap = pacing.worker_cap(runtime.config, runtime.max_num_workers, evaluating=evaluating)
        if self.status is not None:
            cap = pacing.steered_cap(cap, self.status)
        return pacing.rollouts_wanted(runtime.config, self._queue(), cap)

    async def add_workers(self) -> None:
        """Start rollouts up to the number wanted and admitted, oldest waiting items first."""
        runtime, who, size = self.runtime, self._run.identity, self.runtime.config.group_size
        await self.shutdown.or_shutdown(self.admission.settle(runtime.pool.jobs, who, size))
        bounded = self.status is not None and self.status.max_staleness is not None
        more = self.rollouts_wanted() - runtime.pool.busy
        runtime.metrics_logger.workers_added_list.append(more)
        # A bound: the step has to be read even if rollouts end as fast as they start.
        for _ in range(more):
            if self.shutdown.requested.is_set():
                return
            job = self._next or runtime.pool.next_waiting() or await runtime.new_job()
            self._has_no_item = job is None
            if job is None:
                return
            self._next = job  # kept if this call is interrupted
            idle = runtime.pool.busy == 0
            admitted = self.admission.admits(job.uuid, who, size, bounded=bounded, idle=idle)
            if not await self.shutdown.or_shutdown(admitted):
                return
            self._next = None
            runtime.pool.start(job)

    def _update_phase(self) -> None:
        pool, limit = self.runtime.pool, self.runtime.config.max_failures_in_a_row
        if self.evaluation.task is not None:
            self.phase = EnvPhase.EVALUATING
            self.waits.clear("trainer", "groups")
        elif pool.busy == 0 and self.status is not None and self.status.steered is not None:
            # Endless, so no wait for the trainer.
            is_drained = self.status.steered == "draining"
            self.phase = (
                EnvPhase.DRAINED_BY_OPERATOR if is_drained else EnvPhase.PAUSED_BY_OPERATOR
            )
            self.waits.clear("trainer", "groups")
        elif pool.busy == 0 and self.admission.refusal is not None:
            self.phase = EnvPhase.NOT_ADMITTED
            self.waits.clear("groups")
            self.waits.start("trainer", self.admission.refusal, usual=True)
        elif pool.busy == 0 and self.rollouts_wanted() == 0:
            self.phase = EnvPhase.PAUSED
            self.waits.clear("groups")
            self.waits.start("trainer", "the trainer to take a batch", usual=True)
        else:
            self.waits.clear("trainer")
            dropped = self.runtime.group_stats.mostly_dropped()
            self.phase = EnvPhase.MOSTLY_DROPPED if dropped else EnvPhase.ROLLOUT
            if pool.busy == 0 and self._has_no_item:
                self.waits.start("groups", "an item: get_next_item returned None")
            elif dropped or pool.consecutive_empty_items >= limit:
                none = f"none in the last {pool.consecutive_empty_items} items"
                self.waits.start("groups", f"a group worth keeping: {dropped or none}")
            else:
                self.waits.clear("groups")

    async def _weights_of(self, step: int) -> None:
        """WaitReport, within a bound, until the servers hold the weights that ``step`` gave."""
        wait_s = self.runtime.config.final_weights_timeout_s
        started = time.monotonic()
        while self.status is not None and not pacing.weights_have_settled(
            step,
            self.status.current_step,
            self.status.policy_version,
            pacing.groups_of_batches(self.status, self.runtime.config.batch_size),
        ):
            self.waits.start("weights", f"the weights of step {step}")
            if time.monotonic() - started > wait_s:
                logger.warning("evaluating without them: waited %.0f s", wait_s)
                break
            await self.shutdown.pause(STATUS_POLL_S)
            try:
                await self.read_status()
            except (UnknownEnv, NotRegistered):
                break  # the run has ended at the API; the servers still hold its weights
        self.waits.clear("weights")

    # --- heartbeat, leaving -------------------------------------------------------------

    async def beat(self, **last: int) -> None:
        """Report the current activity to the API; an absent API is not waited for."""
        runtime = self.runtime
        servers = await runtime.server.states()
        stats, details = runtime.group_stats, runtime.pool.figures()
        details |= {**stats.totals(), **stats.recent_reward(), **runtime.journal.figures()}
        details |= runtime.teacher.figures() if runtime.teacher is not None else {}
        details |= {"clock": time.time(), **last}
        if self._run.name is not None:
            details["env"] = self._run.name
        waits = [*self.waits.report(), *_silence_of(servers)]
        waits.sort(key=lambda wait: wait.depth)
        await self.client.heartbeat(
            Heartbeat(
                role="env",
                name=self.name,
                phase=self.phase.value,
                waiting_on=waits[0].on if waits else None,
                waits=waits,
                details=details,
                servers=servers[:MAX_SERVERS],
            )
        )
        await self.servers.refresh()
        if self._run.registered is not None:
            await runtime.group_stats.reports.send(self.client, self._run.identity)
            await self._report_account(ended="ended" in last)

    async def _report_account(self, *, ended: bool) -> None:
        who, account = self._run.identity, self.runtime.account
        account.begin_run(who.run_id or "")
        report = account.report(who, time.monotonic(), ended=ended)
        if report is not None and not await self.client.report_account(report):
            account.report_again()

    async def _drain(self) -> None:
        self.phase = EnvPhase.DRAINING
        self.waits.clear("trainer", "groups", "weights", "failures")
        self.runtime.pool.cancel_unfinished()
        bound = 0.0 if self.shutdown.forced else self.runtime.config.drain_timeout_s
        if late := await self.runtime.pool.drain(bound):
            logger.error("%d sends did not finish within the drain timeout", late)

    async def _leave(self) -> None:
        runtime = self.runtime
        await self._drain()
        for task in (self._heart, self.evaluation.task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.servers.close()
        try:
            if self.sender is not None:
                await asyncio.wait_for(self._disconnect(), DISCONNECT_TIMEOUT_S)
                with boundary(runtime.label(), "the end", "wandb_log"):
                    await runtime.env.wandb_log({})
        except (AtroposError, asyncio.TimeoutError) as error:
            # A failure here must not hide an error that ends the run.
            logger.error("while leaving: %s", error or "no reply from the rollout API")
        finally:
            level = runtime.metrics_logger.level
            counts = runtime.group_stats.totals().items()
            words = ", ".join(f"{count} {name}" for name, count in counts if count)
            logger.log(level, "%s leaves: %s", runtime.label(), words or "no group")
            await asyncio.to_thread(runtime.journal.close, delete=self.complete)
            await runtime.close()
            await self.client.close()

    async def _disconnect(self) -> None:
        who = self._run.identity
        await self.beat(ended=1)
        await self.admission.settle((), who, self.runtime.config.group_size)
        await self.client.disconnect_env(who)


def _silence_of(servers: Sequence[ServerState]) -> list[WaitReport]:
    """The wait for the first server without an answer, if any."""
    silent = next((server for server in servers if server.silent_s is not None), None)
    if silent is None or silent.silent_s is None:
        return []
    on = f"inference server {silent.url}: no answer for {silent.silent_s:.0f} s"
    return [WaitReport(cause="server", on=on, age_s=silent.silent_s)]
