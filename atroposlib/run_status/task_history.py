"""Tasks of a run by success over its steps: files that environments with a curriculum write.

{"step": 12, "task": "3 + 4", "success": 0.5, "useful": true, "tokens": 96, "version": 12, ...}

A line is a group that an environment observed, sent or not. Readers divide the steps of a run into
``PARTS`` parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from atroposlib.utils.io import name_of_file

FOLDER = "env_curriculum"  # a folder in the trainer's
OLDER = ".1"  # suffix of the file before the current file
PARTS = 10
ORDERS = ("hardest", "easiest", "newest", "useful")
RETIRED = ("too_easy", "too_hard")  # pools whose tasks are drawn seldom


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # exact in a page
Name = Annotated[str, msgspec.Meta(max_length=400)]


class HistoryLine(msgspec.Struct, frozen=True, gc=False):
    """A group of a task, as the history has it."""

    step: Count
    task: Name
    success: Annotated[float, msgspec.Meta(ge=0, le=1)] | None
    useful: bool
    tokens: Count
    version: Count = 0
    pool: Name | None = None  # the pool after the group


_LINE = msgspec.json.Decoder(HistoryLine)


@dataclass(frozen=True)
class TaskSummary:
    """A task over a run."""

    task: str
    groups: int  # groups with scores
    failed: int  # rollouts without a group
    useful: int
    tokens: int
    success: float | None  # mean of the last third of its groups
    first_success: float | None  # success of its first group
    last_step: int
    pool: str | None
    over_steps: list[float | None]  # (PARTS,) mean success in each part of the run


@dataclass(frozen=True)
class RunPart:
    """The groups of a part of the run."""

    step: int  # the first
    groups: int
    useful: int
    success: float
    pools: dict[str, int]  # groups by the pool of their task


@dataclass(frozen=True)
class EnvTasks:
    """The tasks of an environment over a run."""

    env: str
    groups: int  # groups with scores
    useful: int
    tokens: int
    n_tasks: int
    retired: dict[str, int]  # tasks at the end, by pool
    parts: list[RunPart]  # parts that have a group
    tasks: list[TaskSummary]  # ordered as the reader asks


@dataclass(frozen=True)
class TaskPage:
    """GET /explore/tasks: environments with a curriculum."""

    envs: list[EnvTasks]


def history_files(places: Iterable[Path]) -> list[Path]:
    """The histories in the first of these folders that has some, a file for each environment."""
    for place in places:
        if files := sorted((place / FOLDER).glob("*.jsonl")):
            return files
    return []


def history_lines(path: Path) -> Iterator[HistoryLine]:
    """The lines of a history, oldest first; what is no line, as a torn last line, is left out."""
    for file in (Path(f"{path}{OLDER}"), path):
        if not file.is_file():
            continue
        with file.open("rb") as lines:
            for line in lines:
                try:
                    yield _LINE.decode(line)
                except ValueError:
                    continue


def env_tasks(
    env: str, lines: Sequence[HistoryLine], order: str = ORDERS[0], most: int | None = None
) -> EnvTasks:
    """Summary of the lines of an environment, and the first ``most`` tasks in this order."""
    last_step = max((line.step for line in lines), default=0)
    of_task: dict[str, list[HistoryLine]] = {}
    for line in lines:
        of_task.setdefault(line.task, []).append(line)
    names = sorted(of_task, key=lambda name: (_order_key(of_task[name], order), name))
    scored = [line for line in lines if line.success is not None]
    retired = Counter(own[-1].pool for own in of_task.values() if own[-1].pool in RETIRED)
    return EnvTasks(
        env=env,
        groups=len(scored),
        useful=sum(line.useful for line in scored),
        tokens=sum(line.tokens for line in scored),
        n_tasks=len(names),
        retired={pool: retired[pool] for pool in RETIRED if retired},
        parts=run_parts(scored),
        tasks=[_summary(name, of_task[name], last_step) for name in names[:most]],
    )


def task_page(places: Sequence[Path], env: str | None, order: str, most: int) -> TaskPage:
    """Environments of a run, or the environment ``env``, with at most ``most`` tasks each."""
    named = [(name_of_file(file.stem), file) for file in history_files(places)]
    read = (
        env_tasks(name, list(history_lines(file)), order, most)
        for name, file in named
        if env in (None, name)
    )
    return TaskPage(list(read))


def run_part_of(step: int, last_step: int) -> int:
    """The part of the run that a step is in: 0 to ``PARTS`` - 1."""
    return min(PARTS - 1, step * PARTS // (last_step + 1))


def run_parts(scored: Sequence[HistoryLine]) -> list[RunPart]:
    """Groups of each part of the run that has some: success, and the pools of their tasks."""
    last_step = max((line.step for line in scored), default=0)
    of_part: dict[int, list[HistoryLine]] = {}
    for line in scored:
        of_part.setdefault(run_part_of(line.step, last_step), []).append(line)
    return [
        RunPart(
            step=min(line.step for line in lines),
            groups=len(lines),
            useful=sum(line.useful for line in lines),
            success=mean_success(line.success for line in lines) or 0.0,
            pools=dict(Counter(line.pool for line in lines if line.pool is not None)),
        )
        for _, lines in sorted(of_part.items())
    ]


def mean_success(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _order_key(lines: Sequence[HistoryLine], order: str) -> float:
    """Sorts a task by success, by its last step, or by its number of useful groups."""
    if order == "newest":
        return -lines[-1].step
    if order == "useful":
        return -sum(line.useful for line in lines)
    success = recent_success([line.success for line in lines if line.success is not None])
    if success is None:  # last
        return 2.0
    return success if order == "hardest" else -success


def recent_success(values: Sequence[float]) -> float | None:
    """Mean success of the last third of the groups of a task."""
    return mean_success(values[-max(1, len(values) // 3) :])


def _summary(name: str, lines: Sequence[HistoryLine], last_step: int) -> TaskSummary:
    scored = [(line.step, line.success) for line in lines if line.success is not None]
    values = [success for _, success in scored]
    in_part: dict[int, list[float]] = {}
    for step, success in scored:
        in_part.setdefault(run_part_of(step, last_step), []).append(success)
    return TaskSummary(
        task=name,
        groups=len(values),
        failed=len(lines) - len(values),
        useful=sum(line.useful for line in lines),
        tokens=sum(line.tokens for line in lines),
        success=recent_success(values),
        first_success=values[0] if values else None,
        last_step=lines[-1].step,
        pool=lines[-1].pool,
        over_steps=[mean_success(in_part.get(part, ())) for part in range(PARTS)],
    )
