"""Rollouts under way: what one may end in, and the pool that runs them.

    wanted --start--> ROLLOUT --finished--> SENDING --> done        (never cancelled here)
                         |  \\--failed--> again, at most max_item_retries times
                         '--too old--> TIMED_OUT, counted

Only a rollout that still generates can be cancelled: once it is finished, its group is
work that was paid for, and it is sent whatever happens to the pool.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from atroposlib.envs.groups import ScoredDataGroup, ScoredDataItem, collate, item_label
from atroposlib.errors import AtroposError, boundary

logger = logging.getLogger(__name__)


class End(str, Enum):
    """How a rollout ended."""

    SCORED = "scored"
    EMPTY = "empty"  # the environment returned nothing: it chose not to score this item
    FAILED = "failed"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True)
class Outcome:
    """The end of one rollout: ``groups`` when scored, ``error`` when failed."""

    end: End
    groups: list[ScoredDataGroup] = field(default_factory=list)
    backlog: list[Any] = field(default_factory=list)
    error: AtroposError | None = None
    seconds: float = 0.0


class Rollouts(Protocol):
    """The hooks of an environment that one rollout goes through."""

    def label(self) -> str: ...

    async def collect_trajectories(self, item: Any) -> Any: ...

    async def postprocess_histories(self, trajectories: Any) -> Any: ...

    async def cleanup(self) -> None: ...


async def run_rollout(env: Rollouts, item: Any, timeout_s: float) -> Outcome:
    """Collect and postprocess one item; ``timeout_s`` <= 0 waits without a bound.

    Every failure comes back as an outcome that names env, item and stage.
    """
    begun = time.monotonic()
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
    except asyncio.TimeoutError:
        return Outcome(End.TIMED_OUT, seconds=time.monotonic() - begun)
    except AtroposError as error:
        return Outcome(End.FAILED, error=error, seconds=time.monotonic() - begun)
    groups = [g for g in (scored if isinstance(scored, list) else [scored]) if g]
    end = End.SCORED if groups else End.EMPTY
    return Outcome(end, groups, backlog, seconds=time.monotonic() - begun)


async def collect_group(
    sample: Callable[[Any], Awaitable[tuple[ScoredDataItem | None, list[Any]]]],
    item: Any,
    group_size: int,
) -> tuple[ScoredDataGroup | None, list[Any]]:
    """Draw ``group_size`` samples of ``item`` at once; a failed one is drawn again.

    A group shares ``group_size`` second draws. When they are used up, an exception goes
    on to the caller and a sample that stays None gives up the group.
    """
    redraws = group_size
    backlog: list[Any] = []

    async def one() -> ScoredDataItem | None:
        nonlocal redraws
        while True:
            try:
                with boundary("sample", item, "collect_trajectory"):
                    drawn, more = await sample(item)
            except AtroposError:
                if redraws == 0:
                    raise
            else:
                backlog.extend(more or [])
                if drawn is not None or redraws == 0:
                    return drawn
            redraws -= 1

    tasks = [asyncio.ensure_future(one()) for _ in range(group_size)]
    try:
        drawn = await asyncio.gather(*tasks)
    finally:
        # A sibling left running would go on sampling for a group that is given up.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    items = [sample_item for sample_item in drawn if sample_item is not None]
    if len(items) < group_size:
        return None, backlog
    return collate(items), backlog


@dataclass
class Job:
    """An item on its way through the pool."""

    item: Any
    attempts: int = 0
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))


class WorkerPool:
    """The rollouts under way, the items that wait to be tried again, and the counts.

    ``deliver`` gets the groups of a finished rollout and returns how many were kept.
    """

    def __init__(
        self,
        env: Rollouts,
        deliver: Callable[[list[ScoredDataGroup], Any], Awaitable[int]],
        *,
        timeout_s: float,
        max_item_retries: int,
        on_end: Callable[[Outcome, Any], None] | None = None,
    ) -> None:
        self._env = env
        self._deliver = deliver
        self._on_end = on_end
        self._timeout_s = timeout_s
        self._max_item_retries = max_item_retries
        self.tasks: set[asyncio.Task[None]] = set()
        self.running: dict[str, dict[str, Any]] = {}  # uuid -> item, worker, start_time
        self.backlog: deque[Any] = deque()  # oldest first
        self.retries: deque[Job] = deque()
        self.counts: Counter[str] = Counter()  # per End, plus retried, gave_up and kept
        self.errors_in_a_row = 0  # failed or timed out, since the last that was neither
        self.barren_in_a_row = 0  # items without a kept group, since the last kept one
        self.last_error: AtroposError | None = None
        self.fatal: BaseException | None = None  # delivery cannot go on
        self.changed = asyncio.Event()  # set whenever a rollout or a send ends

    @property
    def busy(self) -> int:
        """Rollouts generating or sending."""
        return len(self.tasks)

    def next_waiting(self) -> Job | None:
        """The oldest item to try again, else the oldest of the backlog."""
        if self.retries:
            return self.retries.popleft()
        if self.backlog:
            return Job(self.backlog.popleft())
        return None

    def start(self, job: Job) -> None:
        """Run ``job``; the caller made sure that there is room."""
        task = asyncio.ensure_future(self._run(job))
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        self.running[job.uuid] = {
            "item": job.item,
            "worker": task,
            "start_time": time.monotonic(),
        }

    async def _run(self, job: Job) -> None:
        try:
            outcome = await run_rollout(self._env, job.item, self._timeout_s)
        finally:
            self.running.pop(job.uuid, None)  # from here on it is not cancelled
            with boundary(self._env.label(), job.item, "cleanup"):
                await self._env.cleanup()
        self.counts[outcome.end.value] += 1
        self.backlog.extend(outcome.backlog)
        if self._on_end is not None:
            self._on_end(outcome, job.item)
        broken = outcome.end in (End.FAILED, End.TIMED_OUT)
        self.errors_in_a_row = self.errors_in_a_row + 1 if broken else 0
        kept = 0
        if outcome.end is End.SCORED:
            kept = await self._deliver(outcome.groups, job.item)
        elif outcome.end is End.FAILED:
            self._try_again(job, outcome.error)
        elif outcome.end is End.TIMED_OUT:
            name = item_label(job.item)
            logger.warning("item %s gave no group in %.0f s", name, self._timeout_s)
        self.counts["kept"] += kept
        self.barren_in_a_row = 0 if kept else self.barren_in_a_row + 1

    def _try_again(self, job: Job, error: AtroposError | None) -> None:
        self.last_error = error
        job.attempts += 1
        again = job.attempts <= self._max_item_retries
        self.counts["retried" if again else "gave_up"] += 1
        logger.warning("%s (%s)", error, "tried again" if again else "given up")
        if again:
            self.retries.append(job)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.fatal = self.fatal or task.exception()
        self.changed.set()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return when a rollout or a send ended, or after ``timeout_s``."""
        try:
            await asyncio.wait_for(self.changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            pass
        self.changed.clear()

    def cancel_unfinished(self) -> list[Any]:
        """Cancel what still generates, and return those items; sends go on."""
        unfinished = list(self.running.values())
        for entry in unfinished:
            entry["worker"].cancel()
        return [entry["item"] for entry in unfinished]

    async def drain(self, timeout_s: float) -> int:
        """Wait for what is under way; after ``timeout_s`` cancel it and say how much."""
        if not self.tasks:
            return 0
        _, late = await asyncio.wait(set(self.tasks), timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return len(late)


async def repeat(period_s: float, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do ``action`` every ``period_s`` seconds until cancelled."""
    while True:
        await action()
        await asyncio.sleep(period_s)
