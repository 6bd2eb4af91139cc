"""Observation of a scored group: success, tokens and version. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.envs.curriculum.interface import ObservedGroup, Task
from atroposlib.envs.journal.journal_records import GroupObserved
from atroposlib.wire import MASKED


def success_of(scores: Sequence[float], floor: float, best: float) -> float | None:
    """Mean of the scores, 0 at ``floor`` and 1 at ``best``, within 0 and 1; None without a score.

    Example: success_of([1.0, 0.0, -1.0], -1.0, 1.0) == 0.5
    """
    if not scores:
        return None
    mean = sum(scores) / len(scores)
    return min(1.0, max(0.0, (mean - floor) / (best - floor)))


def observed_group(
    task: Task,
    groups: Sequence[Mapping[str, Any]],
    *,
    floor: float,
    best: float,
    version: int,
) -> ObservedGroup:
    """The observation of the groups of a rollout.

    The scores are those of the first group: further groups hold further rows of the same
    rollouts. ``version`` counts where the rows name none.
    """
    if not groups:
        return ObservedGroup(task, version=version)
    scores = tuple(float(score) for score in groups[0]["scores"])
    rows = [row for group in groups for row in group["masks"]]
    versions = [max(row) for row in groups[0].get("versions") or () if len(row)]
    return ObservedGroup(
        task,
        scores,
        success_of(scores, floor, best),
        tokens=sum(int(label != MASKED) for row in rows for label in row),
        version=max((int(known) for known in versions if known >= 0), default=version),
    )


def event_of(group: ObservedGroup, rollout: str | None) -> GroupObserved:
    """The record of a group in the journal; the rollout is named where it has scores."""
    return GroupObserved(
        group.task.number,
        [*group.scores],
        group.success,
        group.tokens,
        group.version,
        rollout if group.scores else None,
    )


def group_of_event(event: GroupObserved, tasks: Sequence[Task]) -> ObservedGroup:
    """The group of a record; a task beyond the end of ``tasks`` is unknown."""
    known = event.number is not None and event.number < len(tasks)
    task = tasks[event.number or 0] if known else Task(None)
    return ObservedGroup(task, tuple(event.scores), event.success, event.tokens, event.version)
