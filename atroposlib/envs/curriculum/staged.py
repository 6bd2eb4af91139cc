"""Stages: a level that rises and falls with success, for loaders that take a level.

success above ``up`` --> level + 1        success below ``down`` --> level - 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.curriculum.interface import ObservedGroup, Task, TaskSampler
from atroposlib.errors import ConfigError


class Staged(TaskSampler):
    """Tasks of the current level, in an order drawn anew for each pass over the level.

    Args:
        levels: the loader is called with ``level=1`` to ``level=levels``.
        up: the next level begins where the mean success is above.
        down: the level before begins where the mean success is below.
        groups: of the level since it began, over which the mean is taken.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int = 0,
        levels: int,
        up: float = 0.8,
        down: float = 0.2,
        groups: int = 16,
    ) -> None:
        super().__init__(tasks, seed=seed)
        if not (levels >= 1 and 0 <= down < up <= 1 and groups >= 1):
            raise ConfigError(
                "curriculum, staged: down and up are 0 to 1, in order, levels and groups 1 or more"
            )
        self._up, self._down, self._groups = up, down, groups
        self._of_level: dict[int, list[int]] = {}
        for task in tasks:
            if task.level is None:
                raise ConfigError(
                    "curriculum, staged: the tasks have no level: give @environment a function "
                    "with a keyword of that name, `def tasks(config, *, level=1)`"
                )
            self._of_level.setdefault(task.level, []).append(task.number or 0)
        self.level = min(self._of_level)
        self.drawn: dict[int, int] = {}  # draws of each level
        self.recent: list[float] = []  # success of the last groups of the level

    def next(self) -> Task | None:
        numbers = self._of_level[self.level]
        drawn = self.drawn.get(self.level, 0)
        self.drawn[self.level] = drawn + 1
        number, place = divmod(drawn, len(numbers))
        self.random.seed(f"{self.seed}/{self.level}/{number}")
        return self.tasks[self.random.sample(numbers, len(numbers))[place]]

    def observe(self, group: ObservedGroup) -> None:
        if group.success is None or group.task.level != self.level:
            return
        self.recent = [*self.recent, group.success][-self._groups :]
        if len(self.recent) < self._groups:
            return
        mean = sum(self.recent) / len(self.recent)
        step = (mean > self._up) - (mean < self._down)
        if self.level + step in self._of_level and step:
            self.level += step
            self.recent = []

    def metrics(self) -> dict[str, float]:
        return {"level": float(self.level)}

    def state(self) -> dict[str, Any]:
        names = ("draws", "level", "drawn", "recent")
        return {name: getattr(self, name) for name in names}
