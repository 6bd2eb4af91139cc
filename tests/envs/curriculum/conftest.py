"""Tasks and groups for tests of curricula."""

from __future__ import annotations

from atroposlib.envs.curriculum.interface import ObservedGroup, Task, TaskRows


def rows(count: int) -> TaskRows:
    return TaskRows([{"id": f"{n}", "size": n} for n in range(count)], range(count))


def group(task: Task, *scores: float, version: int = 0, tokens: int = 10) -> ObservedGroup:
    success = sum(scores) / len(scores) if scores else None
    return ObservedGroup(task, scores, success, tokens, version)
