"""Names and numbers of tasks: whether a saved number still means the same task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.envs.curriculum.interface import Task
from atroposlib.envs.rollout.groups import task_digest

DIGEST_CHARS = 32


class NamedTasks:
    """A list of tasks by names, computed at the first question.

    A task is named by its ``id``, else by its content: a task whose text was corrected keeps its
    estimate.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._digest: str | None = None  # all names
        self._numbers: dict[str, int] = {}  # keys: digests of tasks
        self._knows_all = False

    def __len__(self) -> int:
        return len(self._tasks)

    def digest(self) -> tuple[int, str]:
        """Number of tasks, and the digest of the names in order."""
        if self._digest is None:
            self._digest = self.digest_of_first(len(self._tasks))
        return len(self._tasks), self._digest

    def digest_of_first(self, count: int) -> str:
        """The digest of the names of the first ``count`` tasks."""
        digest = hashlib.sha256()
        for i in range(count):
            name = _name_of(self._tasks[i].content).encode("utf-8", "surrogatepass")
            digest.update(len(name).to_bytes(8, "big") + name)
        return digest.hexdigest()[:DIGEST_CHARS]

    def note(self, task: Task) -> None:
        """Remember a task that is handed out to a class."""
        if task.number is not None:
            self._numbers[task_digest(task.content)] = task.number

    def number_of(self, item: Any) -> int | None:
        """The number of the task that an item of a class is, also of a task that an earlier life drew."""
        digest = task_digest(item)
        if digest not in self._numbers and not self._knows_all:
            self._knows_all = True
            for task in self._tasks:
                self.note(task)
        return self._numbers.get(digest)


def change_of(tasks: NamedTasks, count: int, digest: str) -> str | None:
    """Why the numbers of an earlier list of ``count`` tasks mean different tasks; None: the same tasks.

    Tasks that were added behind the earlier tasks change no number.
    """
    if count > len(tasks):
        return f"there were {count} tasks, and there are {len(tasks)}"
    now = tasks.digest()[1] if count == len(tasks) else tasks.digest_of_first(count)
    if now != digest:
        return f"the first {count} tasks are other tasks, or in another order"
    return None


def _name_of(content: Any) -> str:
    identity = content.get("id") if isinstance(content, Mapping) else None
    return task_digest(content) if identity is None else str(identity)
