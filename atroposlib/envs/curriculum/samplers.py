"""Samplers without estimates: uniform, by given weights, and with repeats of useful tasks."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from atroposlib.envs.curriculum.interface import ObservedGroup, Task, TaskSampler
from atroposlib.errors import ConfigError


class Uniform(TaskSampler):
    """Every task once in each pass, in another order in every pass: the default."""

    _pass: tuple[int, Sequence[int]] = (-1, ())  # number, and its order

    def next(self) -> Task | None:
        number, place = divmod(self.draws, len(self.tasks))
        if self._pass[0] != number:
            # As a data set does, so that the order is that of a run without a sampler.
            rng = random.Random(f"{self.seed}/{number}")
            self._pass = (number, rng.sample(range(len(self.tasks)), len(self.tasks)))
        return self.tasks[self._pass[1][place]]

    def state(self) -> dict[str, Any]:
        return {"draws": self.draws}


class Weighted(TaskSampler):
    """Tasks with probabilities in the ratio of their weights.

    Args:
        field: a key of the tasks whose value is the weight, or names it in ``weights``.
        weights: weight of each value of ``field``; values that are missing have weight 1.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int = 0,
        field: str,
        weights: Mapping[Any, float] | None = None,
    ) -> None:
        super().__init__(tasks, seed=seed)
        named = None if weights is None else {str(key): w for key, w in weights.items()}
        each = [_weight_of(task, field, named) for task in tasks]
        self._sums = list(accumulate(each))  # (N,)
        if not self._sums or self._sums[-1] <= 0:
            raise ConfigError(f"curriculum, weighted: every task has weight 0 by {field!r}")

    def next(self) -> Task | None:
        [number] = self.random.choices(range(len(self.tasks)), cum_weights=self._sums)
        return self.tasks[number]

    def state(self) -> dict[str, Any]:
        return {"draws": self.draws}


def _weight_of(task: Task, field: str, named: Mapping[str, float] | None) -> float:
    value = task.content.get(field) if isinstance(task.content, Mapping) else None
    weight = value if named is None else named.get(str(value), 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight >= 0:
        raise ConfigError(
            f"curriculum, weighted: {field!r} of task {task.number} is {weight!r}, not a weight "
            "of 0 or more; name a field of numbers, or give weights of its values"
        )
    return float(weight)


class ReplayUseful(TaskSampler):
    """Uniform, with a share of draws among tasks whose last groups were useful.

    Args:
        share: of draws that repeat an earlier useful task.
        keep: number of useful tasks remembered, the newest tasks.
    """

    def __init__(
        self, tasks: Sequence[Task], *, seed: int = 0, share: float = 0.25, keep: int = 1000
    ) -> None:
        super().__init__(tasks, seed=seed)
        if not 0 <= share <= 1 or keep < 1:
            raise ConfigError("curriculum, replay: share is 0 to 1, keep is 1 or more")
        self._share = share
        self.useful: deque[int] = deque(maxlen=keep)  # numbers of tasks, oldest first
        self.repeats = 0
        self._fresh = Uniform(tasks, seed=seed)

    def next(self) -> Task | None:
        if self.useful and self.random.random() < self._share:
            self.repeats += 1
            return self.tasks[self.random.choice(self.useful)]
        return self._fresh.draw()

    def observe(self, group: ObservedGroup) -> None:
        number = group.task.number
        if number is None or not group.scores:
            return
        if number in self.useful:
            self.useful.remove(number)
        if group.is_useful:
            self.useful.append(number)

    def metrics(self) -> dict[str, float]:
        return {"repeated_share": self.repeats / max(1, self.draws)}

    def state(self) -> dict[str, Any]:
        return {"draws": self.draws, "useful": [*self.useful], "repeats": self.repeats}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._fresh.restore({"draws": self.draws - self.repeats})
