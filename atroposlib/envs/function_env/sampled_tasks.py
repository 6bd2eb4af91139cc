"""Tasks that a sampler of the curriculum chooses, in the place of the order of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.curriculum.curriculum import Curriculum
from atroposlib.envs.curriculum.interface import TaskRows
from atroposlib.envs.function_env.data import Indexed, Stream, TaskItem, item_of
from atroposlib.envs.settings.config import SLOT
from atroposlib.envs.settings.curriculum_settings import UNIFORM
from atroposlib.errors import ConfigError


class SampledItem(TaskItem):
    """A task with the number that its sampler knows it by; its ``epoch`` is its place."""

    number: int


class SampledTasks:
    """Source of a cursor: the sampler decides what stands at a place when it is first read."""

    def __init__(self, curriculum: Curriculum, tasks: TaskRows, epochs: int) -> None:
        curriculum.choose_from(tasks)
        self._curriculum = curriculum
        self._end = epochs * len(tasks)  # below 0: there is none

    def at(self, place: int) -> TaskItem | None:
        task = None if 0 <= self._end <= place else self._curriculum.task_at(place)
        if task is None or task.number is None:
            return None
        item = item_of(task.content, place, place, is_unique=True)
        return SampledItem(**item, number=task.number)


def task_source_of(
    source: Indexed | Stream, curriculum: Curriculum, epochs: int
) -> Indexed | Stream | SampledTasks:
    """``source``, or with any sampler but uniform the choice of the sampler from the rows.

    Raises ConfigError: the data set has no length.
    """
    if curriculum.settings.sampler.name == UNIFORM:
        return source
    if isinstance(source, Stream):
        raise ConfigError(
            f"{curriculum.label}: curriculum: a sampler chooses from a list, and this data set is a stream; "
            "return a list, or set the sampler to uniform"
        )
    tasks = TaskRows(source.rows, source.indices, source.levels)
    return SampledTasks(curriculum, tasks, epochs)


class ChosenTasks:
    """The sampler of the curriculum, for a class that has a list of tasks.

    Example: in ``setup`` ``self.tasks = ChosenTasks(self, rows)``, and in ``get_next_item``
    ``return self.tasks.next()``

    The order of draws survives a restart. A task that was under way comes again from the journal.
    """

    def __init__(self, env: object, rows: Sequence[Any]) -> None:
        self._curriculum: Curriculum = vars(env)[SLOT].curriculum
        self._curriculum.choose_from(TaskRows(rows, range(len(rows))))

    def next(self) -> Any:
        """The content of the next task; None if there is none."""
        task = self._curriculum.draw_uncounted()
        return None if task is None else task.content
