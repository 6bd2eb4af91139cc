"""Evaluation of a function environment: every held-out task, and what the numbers leave out.

samples of a task -> mean per task -> mean over tasks; failed and unscored samples are counted
beside it, never as 0 and never without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from atroposlib.envs.function_env.data import TaskItem
from atroposlib.envs.rollout.groups import mean_metrics
from atroposlib.errors import AtroposError
from atroposlib.utils.gathering import gather_bounded


class Result(str, Enum):
    """How one sample of an evaluation ended."""

    SCORED = "scored"
    UNSCORED = "unscored"  # the function returned None
    FAILED = "failed"


@dataclass(frozen=True)
class Sample:
    """One rollout of a held-out task.

    ``numbers`` are the named rewards and ``reward``; ``shown`` goes into samples.jsonl.
    """

    item: TaskItem
    result: Result
    numbers: dict[str, float] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)
    error: AtroposError | None = None

    def line(self) -> dict[str, Any]:
        """One line of samples.jsonl."""
        line = {"id": self.item["id"], "task": self.item["task"], "result": self.result.value}
        if self.error is not None:
            line["error"] = str(self.error)
        return {**line, **self.shown, **self.numbers}


Draw = Callable[[TaskItem], Awaitable[Sample]]  # raises AtroposError when it fails


async def draw_all(
    items: Sequence[TaskItem], times: int, draw: Draw, *, at_once: int, tries: int
) -> list[Sample]:
    """``times`` samples of every item; what fails is tried again, ``tries`` times in all."""

    async def one(item: TaskItem) -> Sample:
        for left in reversed(range(tries)):
            try:
                return await draw(item)
            except AtroposError as error:
                if left == 0:
                    return Sample(item, Result.FAILED, error=error)
        raise AssertionError("unreachable: tries is at least 1")

    drawn = [item for item in items for _ in range(times)]
    return await gather_bounded(drawn, one, at_once)


def summary(samples: Sequence[Sample], times: int) -> dict[str, float]:
    """Metrics of an evaluation.

    Example: {"exact": 0.5, "reward": 0.5, "items": 8, "samples": 8, "failed": 0,
    "unscored": 0}. With several samples of a task, ``exact_best@4`` is the mean over tasks of
    the best of four: pass@4 where the reward is 0 or 1.

    Raises:
        AtroposError: every sample failed; the error of the last one.
    """
    counts = Counter(sample.result for sample in samples)
    failures = [sample.error for sample in samples if sample.error is not None]
    if failures and len(failures) == len(samples):
        raise failures[-1]
    by_item: dict[str, list[dict[str, float]]] = {}
    for sample in samples:
        if sample.result is Result.SCORED:
            by_item.setdefault(sample.item["id"], []).append(sample.numbers)
    metrics = mean_metrics(mean_metrics(numbers) for numbers in by_item.values())
    if times > 1:
        best = mean_metrics(_best(numbers) for numbers in by_item.values())
        metrics.update((f"{name}_best@{times}", value) for name, value in best.items())
    return {
        **metrics,
        "items": len(by_item),
        "samples": len(samples),
        "failed": counts[Result.FAILED],
        "unscored": counts[Result.UNSCORED],
    }


def _best(numbers: Sequence[dict[str, float]]) -> dict[str, float]:
    names = {name for one in numbers for name in one}
    return {name: max(one[name] for one in numbers if name in one) for name in names}
