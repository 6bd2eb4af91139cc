"""atropos env tasks: tasks of a run by their success over steps, and the pools over time.

atropos env tasks runs/a                    the least solved tasks of each environment
atropos env tasks runs/a --order easiest --most 50
atropos env tasks runs/a --json             a line for each task

An environment with a curriculum writes what it observed into env_curriculum of the trainer's folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from atroposlib.envs.curriculum.history import FOLDER, HistoryLine, history_lines
from atroposlib.errors import ConfigError
from atroposlib.run_status.view import BARS
from atroposlib.utils.command.parser import CommandParser

PARTS = 10  # tables divide the steps of a run by this
ORDERS = ("hardest", "easiest", "newest", "useful")
RETIRED = ("too_easy", "too_hard")  # pools whose tasks are drawn seldom


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


def main(argv: Sequence[str] | None = None) -> int:
    """Print tasks and pools. Raises ConfigError: the folder has no history of tasks."""
    parser = CommandParser(prog="atropos env tasks", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or a history")
    parser.add_argument("--order", choices=ORDERS, default="hardest", help="(%(default)s)")
    parser.add_argument("--most", type=int, default=20, help="tasks shown (%(default)s)")
    parser.add_argument("--json", action="store_true", help="all tasks, a JSON object a line")
    options = parser.parse_args(argv)
    for path in histories_in(options.run):
        lines = list(history_lines(path))
        tasks = tasks_by_order(summaries(lines), options.order)
        if options.json:
            for task in tasks:
                print(json.dumps({"env": path.stem, **asdict(task)}))
        else:
            print("\n".join(table(path.stem, lines, tasks, options.most)))
    return 0


def histories_in(run: Path) -> list[Path]:
    """The files of a run, a file for each environment."""
    if run.is_file():
        return [run]
    places = (run, run / FOLDER, run / "checkpoints" / FOLDER)
    files = [
        file for place in places if place.is_dir() for file in sorted(place.glob("*.jsonl"))
    ]
    files = [file for file in files if file.parent.name == FOLDER]
    if not files:
        raise ConfigError(
            f"{run}: no {FOLDER} in it: an environment writes one if its settings have a "
            "curriculum, and the trainer a folder of checkpoints"
        )
    return files


def run_part_of(step: int, last_step: int) -> int:
    """The part of the run that a step is in: 0 to ``PARTS`` - 1."""
    return min(PARTS - 1, step * PARTS // (last_step + 1))


def mean_success(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def summaries(lines: Sequence[HistoryLine]) -> list[TaskSummary]:
    """The tasks of a history."""
    last_step = max((line.step for line in lines), default=0)
    of_task: dict[str, list[HistoryLine]] = {}
    for line in lines:
        of_task.setdefault(line.task, []).append(line)
    return [_summary(name, own, last_step) for name, own in of_task.items()]


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
        success=mean_success(values[-max(1, len(values) // 3) :]),
        first_success=values[0] if values else None,
        last_step=lines[-1].step,
        pool=lines[-1].pool,
        over_steps=[mean_success(in_part.get(part, ())) for part in range(PARTS)],
    )


def tasks_by_order(tasks: Sequence[TaskSummary], order: str) -> list[TaskSummary]:
    """Tasks by success, by their last step, or by their number of useful groups."""

    def key(task: TaskSummary) -> float:
        success = (
            2.0 if task.success is None else task.success
        )  # tasks without success are last
        sizes = {
            "hardest": success,
            "easiest": -success if task.success is not None else 1.0,
            "newest": -task.last_step,
            "useful": -task.useful,
        }
        return sizes[order]

    return sorted(tasks, key=lambda task: (key(task), task.task))


def table(
    env: str, lines: Sequence[HistoryLine], tasks: Sequence[TaskSummary], most: int
) -> list[str]:
    """The run in a sentence, its pools over time, its tasks."""
    scored = [line for line in lines if line.success is not None]
    useful = sum(line.useful for line in scored)
    tokens = sum(line.tokens for line in scored)
    each = f"{tokens / useful:,.0f}" if useful else "-"
    text = [
        f"{env}: {len(scored):,} groups of {len(tasks):,} tasks, "
        f"{useful / max(1, len(scored)):.0%} useful, {each} tokens a useful group"
    ]
    text += _pools_over_time(scored)
    retired = Counter(task.pool for task in tasks if task.pool in RETIRED)
    if retired:
        counts = ", ".join(f"{retired[pool]} {pool.replace('_', ' ')}" for pool in RETIRED)
        text.append(f"retired at the end, of {len(tasks)} tasks: {counts}")
    text.append(
        f"{'task':32}{'groups':>8}{'useful':>8}{'success':>9}  {'over steps':{PARTS}}  pool"
    )
    for task in tasks[:most]:
        success = "-" if task.success is None else f"{task.success:.2f}"
        line = "".join(
            " " if value is None else BARS[1 + round(value * (len(BARS) - 2))]
            for value in task.over_steps
        )
        text.append(
            f"{task.task[:30]:32}{task.groups:>8}{task.useful:>8}{success:>9}  {line}  "
            f"{task.pool or ''}".rstrip()
        )
    return text


def _pools_over_time(lines: Sequence[HistoryLine]) -> list[str]:
    """Groups of each part of the run: success, useful groups, and the pools of their tasks."""
    last_step = max((line.step for line in lines), default=0)
    pools = sorted({line.pool for line in lines if line.pool is not None})
    text = [
        f"{'from step':>10}{'groups':>8}{'useful':>8}{'success':>9}"
        + "".join(f"{pool:>10}" for pool in pools)
    ]
    for part in range(PARTS):
        own = [line for line in lines if run_part_of(line.step, last_step) == part]
        if not own:
            continue
        success = mean_success(line.success for line in own if line.success is not None) or 0.0
        shares = Counter(line.pool for line in own)
        text.append(
            f"{min(line.step for line in own):>10}{len(own):>8}"
            f"{sum(line.useful for line in own) / len(own):>8.0%}{success:>9.2f}"
            + "".join(f"{shares[pool] / len(own):>10.0%}" for pool in pools)
        )
    return text
