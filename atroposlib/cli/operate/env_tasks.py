"""atropos env tasks: tasks of a run by their success over steps, and the pools over time.

atropos env tasks runs/a                    the least solved tasks of each environment
atropos env tasks runs/a --order easiest --most 50
atropos env tasks runs/a --json             a line for each task

An environment with a curriculum writes what it observed into env_curriculum of the trainer's folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from atroposlib.errors import ConfigError
from atroposlib.run_status.task_history import (
    FOLDER,
    ORDERS,
    PARTS,
    EnvTasks,
    RunPart,
    TaskSummary,
    env_tasks,
    history_files,
    history_lines,
)
from atroposlib.run_status.view import BARS
from atroposlib.utils.command.parser import CommandParser
from atroposlib.utils.io import name_of_file


def main(argv: Sequence[str] | None = None) -> int:
    """Print tasks and pools. Raises ConfigError: the folder has no history of tasks."""
    parser = CommandParser(prog="atropos env tasks", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, or a history")
    parser.add_argument("--order", choices=ORDERS, default="hardest", help="(%(default)s)")
    parser.add_argument("--most", type=int, default=20, help="tasks shown (%(default)s)")
    parser.add_argument("--json", action="store_true", help="all tasks, a JSON object a line")
    options = parser.parse_args(argv)
    for path in histories_in(options.run):
        own = env_tasks(name_of_file(path.stem), list(history_lines(path)), options.order)
        if options.json:
            for task in own.tasks:
                print(json.dumps({"env": own.env, **asdict(task)}))
        else:
            print("\n".join(table(own, options.most)))
    return 0


def histories_in(run: Path) -> list[Path]:
    """The files of a run, a file for each environment."""
    if run.is_file():
        return [run]
    places = (run.parent,) if run.name == FOLDER else (run, run / "checkpoints")
    files = history_files(places)
    if not files:
        raise ConfigError(
            f"{run}: no {FOLDER} in it: an environment writes one if its settings have a "
            "curriculum, and the trainer a folder of checkpoints"
        )
    return files


def table(own: EnvTasks, most: int) -> list[str]:
    """The run in a sentence, its pools over time, its tasks."""
    each = f"{own.tokens / own.useful:,.0f}" if own.useful else "-"
    text = [
        f"{own.env}: {own.groups:,} groups of {own.n_tasks:,} tasks, "
        f"{own.useful / max(1, own.groups):.0%} useful, {each} tokens a useful group"
    ]
    text += _pools_over_time(own.parts)
    if own.retired:
        counts = ", ".join(f"{n} {pool.replace('_', ' ')}" for pool, n in own.retired.items())
        text.append(f"retired at the end, of {own.n_tasks} tasks: {counts}")
    text.append(
        f"{'task':32}{'groups':>8}{'useful':>8}{'success':>9}  {'over steps':{PARTS}}  pool"
    )
    return text + [_task_line(task) for task in own.tasks[:most]]


def _task_line(task: TaskSummary) -> str:
    success = "-" if task.success is None else f"{task.success:.2f}"
    bars = "".join(
        " " if value is None else BARS[1 + round(value * (len(BARS) - 2))]
        for value in task.over_steps
    )
    figures = f"{task.task[:30]:32}{task.groups:>8}{task.useful:>8}{success:>9}"
    return f"{figures}  {bars}  {task.pool or ''}".rstrip()


def _pools_over_time(parts: Sequence[RunPart]) -> Iterator[str]:
    """A line for each part of the run: success, useful groups, and the pools of their tasks."""
    pools = sorted({pool for part in parts for pool in part.pools})
    heads = "".join(f"{pool:>10}" for pool in pools)
    yield f"{'from step':>10}{'groups':>8}{'useful':>8}{'success':>9}{heads}"
    for part in parts:
        shares = "".join(f"{part.pools.get(pool, 0) / part.groups:>10.0%}" for pool in pools)
        useful = part.useful / part.groups
        yield f"{part.step:>10}{part.groups:>8}{useful:>8.0%}{part.success:>9.2f}{shares}"
