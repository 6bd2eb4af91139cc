"""Parts of a curriculum, for authors: the sampler, the gate, and what they receive.

A sampler of an author overrides ``next`` alone, and ``observe`` if it learns from groups. Its
attributes are kept in checkpoints and in the journal, so plain attributes suffice.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Task:
    """A task of the data set.

    Example: Task({"id": "3 + 4", "sum": 7}, number=12)
    """

    content: Any  # a row of the data set
    number: int | None = None  # place in ``TaskSampler.tasks``; None: of no sampler
    level: int | None = None  # known where the loader takes a level


@dataclass(frozen=True)
class ObservedGroup:
    """The rollouts of a task, also of a group that is not sent.

    Example: ObservedGroup(Task("3 + 4", 12), scores=(1.0, 0.0), success=0.5, tokens=14, version=3)
    """

    task: Task
    scores: tuple[float, ...] = ()  # (G,); empty: it failed, which is no score of 0
    success: float | None = (
        None  # mean score, 0 at ``floor`` and 1 at ``best``; None: it failed
    )
    tokens: int = 0  # trained tokens of all rows
    version: int = 0  # newest policy version of the rows

    @property
    def is_useful(self) -> bool:
        """Whether the scores differ: equal scores have no advantage."""
        return len(set(self.scores)) > 1


class TaskSampler(ABC):
    """Choice of the next task.

    Args:
        tasks: the trained tasks, without the held-out tasks.
        seed: setting ``seed`` of the environment.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int = 0) -> None:
        self.tasks = tasks
        self.seed = seed
        self.draws = 0  # tasks handed out
        self.random = random.Random(
            seed
        )  # seeded anew for every draw, so that it needs no state

    @abstractmethod
    def next(self) -> Task | None:
        """The next task, an entry of ``tasks``; None if there is none any more."""

    def observe(self, group: ObservedGroup) -> None:
        """Learn from a group. Called once for each group, also dropped and failed groups."""

    def metrics(self) -> dict[str, float]:
        """Numbers about the tasks, emitted as ``curriculum/<name>`` with the metrics."""
        return {}

    def state(self) -> dict[str, Any]:
        """The state for a restart: attributes that are numbers, texts, lists, mappings and arrays."""
        kept = {k: v for k, v in vars(self).items() if k not in ("tasks", "seed", "random")}
        return {name: _plain_container(value) for name, value in kept.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a ``state``."""
        for name, value in state.items():
            current = getattr(self, name, None)
            if isinstance(current, dict | set):
                current.clear()
                current.update(value)
            elif isinstance(current, deque):
                current.clear()
                current.extend(value)
            elif isinstance(current, np.ndarray):
                setattr(self, name, np.array(value, current.dtype))
            else:
                setattr(self, name, value)

    def draw(self) -> Task | None:
        """Call ``next`` with ``random`` seeded by the number of the draw.

        Raises ValueError: it returned none of the tasks.
        """
        self.random.seed(f"{self.seed}/draw {self.draws}")
        task = self.next()
        if task is not None:
            _require_entry(task, len(self.tasks))
        self.draws += task is not None
        return task


def _require_entry(task: Any, n_tasks: int) -> None:
    if not isinstance(task, Task):
        raise ValueError(f"next returned {type(task).__name__}, no entry of tasks")
    if task.number is None or not 0 <= task.number < n_tasks:
        raise ValueError(
            f"next returned a task of number {task.number}, no entry of the {n_tasks} tasks"
        )


def _plain_container(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain_container(entry) for key, entry in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | deque):
        return [_plain_container(entry) for entry in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


class GroupGate(ABC):
    """Decision whether a scored group is sent to the trainer.

    ``reason`` is the sentence that is logged for groups that are not.
    """

    reason = "refused by the gate"

    @abstractmethod
    def admit(self, group: ObservedGroup) -> bool:
        """Whether ``group`` is sent."""

    def refusal(self, group: ObservedGroup) -> str | None:
        """Why ``group`` is not sent; None: the group is sent."""
        success = "none" if group.success is None else f"{group.success:.2f}"
        return None if self.admit(group) else f"{self.reason} (success {success})"


@dataclass(frozen=True)
class TaskRows(Sequence[Task]):
    """The trained rows of a data set as tasks, made when they are read.

    Args:
        levels: level of each row, where the loader takes a level.
    """

    rows: Sequence[Any]
    indices: Sequence[int]
    levels: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        place = range(len(self))[number]
        i = self.indices[place]
        return Task(self.rows[i], place, None if self.levels is None else self.levels[i])

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))
