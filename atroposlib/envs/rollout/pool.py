"""Rollout pool: running rollouts, their outcomes, retries and counts.

    wanted --start--> ROLLOUT --scored--> SENDING --> done          (never cancelled here)
                         |  \\--failed, short--> again, at most max_item_retries times
                         '--too old--> TIMED_OUT, counted

A mistake that fails the first two items ends the run (:mod:`causes`).
Only a rollout that still generates is cancelled. The computation of a finished group is spent,
so the group is sent even when the pool stops.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from atroposlib.envs.rollout.causes import FirstItems, IncompleteGroup, is_infrastructure
from atroposlib.envs.rollout.groups import (
    ScoredDataGroup,
    group_size_of,
    item_label,
    score_problem,
    unscored_rows,
    without_unscored,
)
from atroposlib.envs.rollout.samples import NO_SCORE, outcome_of
from atroposlib.envs.rollout.token_account import TokenAccount, end_group, rows_of_group
from atroposlib.errors import AtroposError, RolloutError, boundary
from atroposlib.generation.sessions.recording import recorded_nodes
from atroposlib.wire.status import (
    JOURNALLED,
    drop_state,
)

if TYPE_CHECKING:
    from atroposlib.envs.settings.config import BaseEnvConfig

logger = logging.getLogger(__name__)
ERROR_CHARS = 200  # bound of a detail of wire.Heartbeat


class RolloutStatus(str, Enum):
    """How a rollout ended."""

    SCORED = "scored"
    EMPTY = "empty"  # the environment returned no group for this item
    SHORT = "short"  # too few samples have a score, after second draws
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


_WITHOUT_GROUP = (RolloutStatus.FAILED, RolloutStatus.TIMED_OUT, RolloutStatus.CANCELLED)


@dataclass(frozen=True)
class Outcome:
    """The end of a rollout: ``groups`` when scored, ``error`` when failed.

    ``short`` has a sentence per group with too few scores. ``samples_failed`` is the outcome
    of all samples of a rollout without a group, if they were not counted one by one.
    """

    status: RolloutStatus
    groups: list[ScoredDataGroup] = field(default_factory=list)
    backlog: list[Any] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    samples_failed: str | None = None
    error: AtroposError | None = None
    seconds: float = 0.0


class RolloutHooks(Protocol):
    """The parts of a runtime that a rollout uses: name, settings, methods of the environment."""

    def label(self) -> str: ...
    @property
    def config(self) -> BaseEnvConfig: ...
    @property
    def collect_trajectories(self) -> Callable[[Any], Awaitable[Any]]: ...
    @property
    def postprocess_histories(self) -> Callable[[Any], Awaitable[Any]]: ...
    @property
    def cleanup(self) -> Callable[[], Awaitable[None]]: ...


async def run_rollout(env: RolloutHooks, item: Any) -> Outcome:
    """Collect and postprocess an item, within ``worker_timeout``.

    Every failure is returned as an outcome whose error names env, item and stage.
    """
    begun = time.monotonic()
    outcome = await _outcome(env, item)
    return replace(outcome, seconds=time.monotonic() - begun)


async def _outcome(env: RolloutHooks, item: Any) -> Outcome:
    timeout_s = env.config.worker_timeout
    backlog: list[Any] = []

    async def stages() -> Any:
        with boundary(env.label(), item, "collect_trajectories"):
            collected, more = await env.collect_trajectories(item)
            backlog.extend(more or [])
        if not collected:
            return None
        with boundary(env.label(), item, "postprocess_histories"):
            return await env.postprocess_histories(collected)

    try:
        scored = await asyncio.wait_for(stages(), timeout_s if timeout_s > 0 else None)
        groups, short = whole_groups(env, item, scored)
    except asyncio.TimeoutError:
        late = TimeoutError(f"no group in {timeout_s:g} s")
        error = RolloutError(env.label(), item_label(item), "collect_trajectories", late)
        return Outcome(RolloutStatus.TIMED_OUT, samples_failed="timeout", error=error)
    except IncompleteGroup as error:
        return Outcome(RolloutStatus.SHORT, short=[str(error)], error=error)
    except AtroposError as error:
        return Outcome(RolloutStatus.FAILED, samples_failed=outcome_of(error), error=error)
    if groups:
        return Outcome(RolloutStatus.SCORED, groups, backlog, short)
    if short:
        lack = IncompleteGroup(short[0])
        return Outcome(RolloutStatus.SHORT, [], backlog, short, error=lack)
    return Outcome(RolloutStatus.EMPTY, [], backlog)


def whole_groups(
    env: RolloutHooks, item: Any, scored: Any
) -> tuple[list[ScoredDataGroup], list[str]]:
    """The collected groups without unscored rows, and a sentence per group that is too small.

    Raises RolloutError: the collected value is not a group, or a score is not a number.
    """
    groups: list[ScoredDataGroup] = []
    short: list[str] = []
    for group in scored if isinstance(scored, list) else [scored]:
        with boundary(env.label(), item, "collect_trajectories", env.collect_trajectories):
            rows = without_unscored(group) if group else None
            scores = rows.get("scores") if rows else None  # an array has no truth value
            for score in () if scores is None else scores:
                if (problem := score_problem({"scores": score})) is not None:
                    raise ValueError(problem)
        if rows is None:
            continue
        if rows is not group:
            end_group(drop_state(NO_SCORE), rows_of_group(unscored_rows(group)))
        left = 0 if scores is None else len(scores)
        expected = group_size_of(rows, env.config.group_size)
        if rows is not group and left < expected:
            short.append(f"{left} of {expected} sequences have a score")
        else:
            groups.append(rows)
    return groups, short


@dataclass
class RolloutTask:
    """An item on its way through the pool."""

    item: Any
    attempts: int = 0
    number: int = -1  # place in the order of the first start
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))

    def take_number(self, number: int) -> None:
        """Set the place in the order, at the first start."""
        self.number = number

    def count_attempt(self) -> None:
        self.attempts += 1


class RolloutRecord(Protocol):
    """A record of what is under way, by the uuid of a rollout."""

    def begin(self, name: str, item: Any) -> None: ...
    def name_of(self, item: Any) -> str | None: ...
    def keep_backlog(self, parent: str, items: Sequence[Any]) -> list[Any]: ...
    def repeat(self, name: str) -> None: ...
    def go_on(self, name: str) -> None: ...
    def end(self, name: str) -> None: ...
    def holds(self, name: str) -> bool: ...


@dataclass
class WorkerPool:
    """Running rollouts, items to be retried, and counts."""

    env: RolloutHooks
    # Receives the groups of a finished rollout and returns the number kept.
    deliver: Callable[[list[ScoredDataGroup], Any], Awaitable[int]]
    on_end: Callable[[Outcome, Any], None] | None = None
    # Called with the uuid of a started rollout; by default roll_out.
    handle: Callable[[str], Awaitable[Any]] | None = None
    record: RolloutRecord | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    jobs: dict[str, asyncio.Task[Any]] = field(default_factory=dict)  # generating or sending
    # item, worker, start_time, job
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    backlog: deque[Any] = field(default_factory=deque)  # oldest first
    retries: deque[RolloutTask] = field(default_factory=deque)
    # Per RolloutStatus; retried, gave_up, kept, cleanup_failed.
    counts: Counter[str] = field(default_factory=Counter)
    consecutive_errors: int = 0  # failed or timed out since the last success
    consecutive_mistakes: int = 0  # consecutive errors without errors of an absent server
    servers_gone_since: float | None = None  # monotonic; None: the last call was answered
    consecutive_empty_items: int = 0  # items without a kept group, since the last kept group
    consecutive_lost_items: int = 0  # the same without items for which no group was wanted
    last_error: AtroposError | None = None
    probe: FirstItems = field(default_factory=FirstItems)
    account: TokenAccount = field(default_factory=TokenAccount)
    started: int = 0  # items
    # An error of delivery, or a mistake in every sample, that ends the run.
    fatal: BaseException | None = None
    # set at the end of each rollout
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def busy(self) -> int:
        """Rollouts generating or sending."""
        return len(self.tasks)

    def figures(self) -> dict[str, float | str]:
        """Counts and the last error, for heartbeats."""
        starts = [rollout["start_time"] for rollout in self.running.values()]
        numbers: dict[str, float | str] = {
            "rollouts_running": len(self.running),
            "oldest_rollout_s": time.monotonic() - min(starts) if starts else 0.0,
            "rollouts_failed": self.counts["failed"] + self.counts["timed_out"],
            "failed_in_a_row": self.consecutive_errors,
        }
        if self.last_error is not None:
            numbers["last_error"] = str(self.last_error)[:ERROR_CHARS]
        return numbers

    def next_waiting(self) -> RolloutTask | None:
        """The oldest item to retry, else the oldest of the backlog."""
        if self.retries:
            return self.retries.popleft()
        if self.backlog:
            item = self.backlog.popleft()
            name = self.record.name_of(item) if self.record is not None else None
            return RolloutTask(item, uuid=name) if name else RolloutTask(item)
        return None

    def start(self, job: RolloutTask) -> None:
        """Run ``job``; the caller limits the number of running jobs."""
        if self.record is not None:
            self.record.begin(job.uuid, job.item)
        self._follow(job, asyncio.ensure_future((self.handle or self.roll_out)(job.uuid)))

    def adopt(self, uuid: str) -> None:
        """Make the current task that of ``uuid`` in ``running``, if an environment started it."""
        entry, task = self.running[uuid], asyncio.current_task()
        if "job" in entry or task is None:
            return
        job = RolloutTask(entry["item"], uuid=uuid)
        if self.record is not None:
            self.record.begin(uuid, job.item)
        self._follow(job, task)

    def _follow(self, job: RolloutTask, task: asyncio.Task[Any]) -> None:
        if job.number < 0:
            job.take_number(self.started)
            self.started += 1
        self.tasks.add(task)
        self.jobs[job.uuid] = task
        task.add_done_callback(lambda done: self._on_end(job, done))
        self.running[job.uuid] = {
            "item": job.item,
            "worker": task,
            "start_time": time.monotonic(),
            "job": job,
        }

    async def roll_out(self, uuid: str) -> list[ScoredDataGroup]:
        """Roll out a started item, deliver its groups and return the groups."""
        with recorded_nodes(), self.account.rollout():
            return await self._roll_out(self.running[uuid]["job"])

    async def _roll_out(self, job: RolloutTask) -> list[ScoredDataGroup]:
        try:
            try:
                outcome = await run_rollout(self.env, job.item)
            except asyncio.CancelledError:
                if self.record is not None and self.record.holds(job.uuid):
                    end_group(JOURNALLED)
                self._note(Outcome(RolloutStatus.CANCELLED, samples_failed="cancelled"), job)
                raise
            finally:
                self.running.pop(job.uuid, None)  # no cancellation from here on
            self._note(outcome, job)
            await self._finish(outcome, job)
            return outcome.groups
        finally:
            await self._clean_up(job)

    def _note(self, outcome: Outcome, job: RolloutTask) -> None:
        self.counts[outcome.status.value] += 1
        if self._keeps_samples(outcome, job):
            end_group(JOURNALLED)
        elif outcome.status in _WITHOUT_GROUP:
            end_group(drop_state(outcome.samples_failed or outcome.status.value))
        backlog = outcome.backlog
        if self.record is not None:
            backlog = self.record.keep_backlog(job.uuid, backlog)
        self.backlog.extend(backlog)
        if self.on_end is not None:
            self.on_end(outcome, job.item)

    async def _finish(self, outcome: Outcome, job: RolloutTask) -> None:
        kept, error = 0, outcome.error
        if outcome.status is RolloutStatus.SCORED:
            try:
                kept = await self.deliver(outcome.groups, job.item)
            except RolloutError as raised:  # raised by a hook of the environment
                error = raised
        if error is None or (
            outcome.status is RolloutStatus.SHORT and error.__cause__ is None
        ):
            self.consecutive_errors = self.consecutive_mistakes = 0
            self.servers_gone_since = None
        else:
            self._went_wrong(error)
        timed_out = outcome.status is RolloutStatus.TIMED_OUT
        self.fatal = self.fatal or self.probe.end(job.number, None if timed_out else error)
        if error is not None and not timed_out:
            self._try_again(job, outcome)
        # An environment that returns no group has decided so: the rollout did not fail.
        self.count_kept(kept, in_order=outcome.status is RolloutStatus.EMPTY)

    def count_kept(self, groups: int, *, in_order: bool = False) -> None:
        """Count the kept groups of an item; ``in_order``: none was wanted of it."""
        self.counts["kept"] += groups
        self.consecutive_empty_items = 0 if groups else self.consecutive_empty_items + 1
        in_order = in_order or groups > 0
        self.consecutive_lost_items = 0 if in_order else self.consecutive_lost_items + 1

    def _went_wrong(self, error: AtroposError) -> None:
        self.last_error = error
        self.consecutive_errors += 1
        if is_infrastructure(error):
            self.servers_gone_since = self.servers_gone_since or time.monotonic()
        else:
            self.consecutive_mistakes += 1
            self.servers_gone_since = None

    async def _clean_up(self, job: RolloutTask) -> None:
        try:
            with boundary(self.env.label(), job.item, "cleanup"):
                await self.env.cleanup()
        except AtroposError as error:
            # Logged only: the groups are delivered already.
            self.counts["cleanup_failed"] += 1
            logger.error("%s", error, exc_info=error)

    def _try_again(self, job: RolloutTask, outcome: Outcome) -> None:
        keeps_samples = self._keeps_samples(outcome, job)
        job.count_attempt()
        again = job.attempts <= self.env.config.max_item_retries
        self.counts["retried" if again else "gave_up"] += 1
        if again:
            self.retries.append(job)
            if self.record is not None and keeps_samples:
                self.record.go_on(job.uuid)
            elif self.record is not None:
                self.record.repeat(job.uuid)

    def _keeps_samples(self, outcome: Outcome, job: RolloutTask) -> bool:
        """Whether the next attempt draws only what a lost server left open.

        After any other failure all samples are drawn again: they may be its cause.
        """
        return (
            self.record is not None
            and outcome.status in (RolloutStatus.SHORT, RolloutStatus.FAILED)
            and outcome.error is not None
            and is_infrastructure(outcome.error)
            and job.attempts < self.env.config.max_item_retries
            and self.record.holds(job.uuid)
        )

    def _on_end(self, job: RolloutTask, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        self.running.pop(job.uuid, None)  # an overridden handle_env may not remove it
        self.jobs.pop(job.uuid, None)
        if task.cancelled():
            pass  # it is still to be done, by this process or its next life
        elif task.exception() is not None:
            self.fatal = self.fatal or task.exception()
        elif self.record is not None and all(job is not again for again in self.retries):
            self.record.end(job.uuid)
        self.changed.set()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return when a rollout or a send ended, or after ``timeout_s``."""
        try:
            await asyncio.wait_for(self.changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            pass
        self.changed.clear()

    def cancel_unfinished(self) -> list[Any]:
        """Cancel rollouts that still generate and return their items; sends continue."""
        unfinished = list(self.running.values())
        for entry in unfinished:
            entry["worker"].cancel()
        return [entry["item"] for entry in unfinished]

    def requeue_unfinished(self) -> None:
        """Cancel running rollouts and put their items at the head of the backlog."""
        self.backlog.extendleft(reversed(self.cancel_unfinished()))

    async def drain(self, timeout_s: float) -> int:
        """Wait for all tasks; after ``timeout_s`` cancel the rest and return their number."""
        if not self.tasks:
            return 0
        _, late = await asyncio.wait(set(self.tasks), timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return len(late)


async def repeat(period_s: float, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Call ``action`` every ``period_s`` seconds until cancelled."""
    while True:
        await action()
        await asyncio.sleep(period_s)
