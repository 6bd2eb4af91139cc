"""Results of runs by task: of held-out checks, else of the rollouts that were trained on.

heldout/step-N/samples.jsonl --.
index of rollouts -------------+--> {task: ItemResult} --> pairs, table of means
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atroposlib.api.archive.filters import name_of_label, where
from atroposlib.api.archive.index import Index
from atroposlib.errors import ConfigError
from atroposlib.run_status.heldout import Heldout, lines_of
from atroposlib.trackers import finite_number
from atroposlib.workbench.paired import ItemResult
from atroposlib.workbench.run_folders import RunFiles

Source = Literal["held-out", "rollouts"]
MAX_ROWS = 2_000_000  # rollouts of a run that are read
MAX_TASKS = 200  # tasks of a table
ROLLOUT_METRIC = "reward"


@dataclass(frozen=True)
class TaskResults:
    """Results of a run by task, and what they are the results of."""

    source: Source
    about: str  # "held-out tasks at step 20", "rollouts of steps 1..20"
    items: Mapping[str, ItemResult]

    @property
    def length_unit(self) -> str:
        return "characters" if self.source == "held-out" else "tokens"


def task_results(
    runs: Sequence[RunFiles], metric: str = ROLLOUT_METRIC, steps: str | None = None
) -> list[TaskResults]:
    """Results of each run, all of the same source.

    Held-out checks are taken where every run has some and a task of them is in all, else the
    rollouts that were trained on: the seed may choose the held-out tasks.

    Args:
        metric: a number of each held-out answer; rollouts have the reward alone.
        steps: of rollouts, ``FROM..TO``; held-out checks are then left aside.

    Raises:
        ConfigError: a run has neither, or other numbers.
    """
    checks = [run.heldout() for run in runs] if steps is None else [None]
    if all(checks):
        results = [
            heldout_results(check, metric, run.run.name)
            for check, run in zip(checks, runs)
            if check is not None
        ]
        shared = set.intersection(*(set(result.items) for result in results))
        if shared or metric != ROLLOUT_METRIC:
            return results
    if metric != ROLLOUT_METRIC:
        raise ConfigError(f"rollouts have no number {metric!r}: only held-out answers do")
    return [rollout_results(run.index(), run.run.name, steps) for run in runs]


def heldout_results(heldout: Heldout, metric: str, name: str) -> TaskResults:
    """Results of the last check of a run."""
    check = heldout.read()[-1]
    items: dict[str, ItemResult] = {}
    for line in lines_of(check):
        item = items.setdefault(heldout_task(line), ItemResult(len(items)))
        value = finite_number(_number_of(line.get(metric)))
        if value is not None:
            item.scores.append(value)
        item.lengths.append(len(str(line.get("completion") or "")))
    if not any(item.scores for item in items.values()):
        raise ConfigError(f"{name}: no held-out answer has a number {metric!r}")
    return TaskResults("held-out", f"held-out tasks at step {check.step}", items)


def heldout_task(line: Mapping[str, Any]) -> str:
    """The task of a held-out answer."""
    return str(line.get("id") or line.get("prompt"))


def _number_of(value: Any) -> Any:
    return float(value) if isinstance(value, bool) else value


def rollout_results(index: Index | None, name: str, steps: str | None) -> TaskResults:
    """Results of the kept rollouts of a run.

    A task has the name of its environment without the number, which restarts change.
    """
    if index is None:
        raise ConfigError(f"{name} has neither held-out checks nor an index of rollouts")
    condition = where({} if steps is None else {"step": steps})
    known = condition.and_("item IS NOT NULL AND reward IS NOT NULL")
    columns = "env, item, reward, n_trained, finish_reason, COALESCE(step, batch_no)"
    rows = index.read(
        f"SELECT {columns} FROM rollout {known.clause} ORDER BY gid, row LIMIT {MAX_ROWS}",
        known.values,
    )
    if not rows:
        raise ConfigError(f"{name}: no rollout of a named task is kept")
    items: dict[str, ItemResult] = {}
    for env, item, reward, tokens, finish, _ in rows:
        result = items.setdefault(f"{name_of_label(env)}/{item}", ItemResult(len(items)))
        result.scores.append(reward)
        result.lengths.append(tokens or 0)
        if finish:
            result.finish.append(finish)
    reached = [step for *_, step in rows if step is not None]
    span = f"steps {min(reached)}..{max(reached)}" if reached else "no step"
    return TaskResults("rollouts", f"rollouts of {span}", items)


def task_table(results: Sequence[TaskResults]) -> list[dict[str, Any]]:
    """Means by task, a column per run, tasks on which runs differ most in front."""
    names = dict.fromkeys(name for result in results for name in result.items)
    rows: list[dict[str, Any]] = []
    for name in names:
        sides = [result.items.get(name) for result in results]
        means = [statistics.fmean(s.scores) if s and s.scores else None for s in sides]
        known = [mean for mean in means if mean is not None]
        if known:
            rows.append(
                {
                    "task": name,
                    "means": means,
                    "range": max(known) - min(known),
                    "n": len(known),
                }
            )
    rows.sort(key=lambda row: (-row["n"], -row["range"], row["task"]))
    return rows[:MAX_TASKS]
