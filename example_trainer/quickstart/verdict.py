"""Verdict on a run, from its metrics: a line, the unmet criteria, seconds by phase. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.run_status.sources import column
from example_trainer.quickstart.recipes import Recipe

LAST_STEPS = 5
MISMATCH_COLUMNS = ("logprob_mismatch_mean", "publish_mismatch_mean")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunVerdict:
    """The figures of the summary line, and every unmet criterion."""

    exact_first: float | None  # mean of the first step: all of it sampled by version 0
    exact_last: float | None  # mean of the last LAST_STEPS steps
    reward_first: float | None
    reward_last: float | None
    seconds: float  # time from the start of the first process to the end of the trainer
    steps: int
    server_version: int | None
    cores: int
    shortcomings: tuple[str, ...]

    @property
    def learned(self) -> bool:
        return not self.shortcomings

    def line(self) -> str:
        label, first, last = "exact", self.exact_first, self.exact_last
        if last is None and self.reward_last is not None:
            label, first, last = "reward", self.reward_first, self.reward_last
        return (
            f"quickstart: {label} {figure(first)} -> {figure(last)} "
            f"in {self.seconds:.0f} s, {self.steps} steps, "
            f"weights version {'?' if self.server_version is None else self.server_version}, "
            f"{self.cores} core{'' if self.cores == 1 else 's'}"
        )


def figure(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def mean(rows: Sequence[Row], name: str) -> float | None:
    values = column(rows, name)
    return sum(values) / len(values) if values else None


def judge(
    recipe: Recipe,
    rows: Sequence[Row],
    *,
    server_version: int | None,
    seconds: float,
    cores: int,
) -> RunVerdict:
    """Compare the rows of metrics.jsonl with the goals of the recipe."""
    start, end = rows[:1], rows[-LAST_STEPS:]
    mismatches = [value for name in MISMATCH_COLUMNS for value in column(rows, name)]
    return RunVerdict(
        exact_first=mean(start, "env/exact"),
        exact_last=mean(end, "env/exact"),
        reward_first=mean(start, "reward_mean"),
        reward_last=mean(end, "reward_mean"),
        seconds=seconds,
        steps=len(rows),
        server_version=server_version,
        cores=cores,
        shortcomings=tuple(_shortcomings(recipe, rows, server_version, bool(mismatches))),
    )


def time_spent(
    rows: Sequence[Row], started: float, trained_s: float, ended_s: float
) -> dict[str, float]:
    """Seconds by phase from ``started``, on the clock of the rows, to the last held-out check."""
    if not rows:
        return {}
    names = [name for name in rows[0] if name.startswith("seconds_")]
    first = sum(sum(column(rows[:1], name)) for name in names)
    spent = {"start-up": rows[0].get("time", started) - started - first}
    spent |= {name.removeprefix("seconds_"): sum(column(rows, name)) for name in names}
    spent["the rest"] = trained_s - sum(spent.values())
    spent["last evaluation"] = ended_s - trained_s
    return {phase: seconds for phase, seconds in spent.items() if seconds >= 0.1}


def _shortcomings(
    recipe: Recipe,
    rows: Sequence[Row],
    server_version: int | None,
    compared: bool,
) -> list[str]:
    if not rows:
        return ["the trainer finished no step"]
    shortcomings = []
    goal = recipe.goal
    start, end = mean(rows[:1], goal.metric), mean(rows[-LAST_STEPS:], goal.metric)
    if start is None or end is None:
        shortcomings.append(f"metrics.jsonl has no {goal.metric}")
    else:
        least = max(goal.ends_above, start)
        if not end > least:
            shortcomings.append(f"{goal.label} ended at {end:.2f}, not above {least:.2f}")
        if not start < goal.starts_below:
            shortcomings.append(
                f"{goal.label} started at {start:.2f}, not below {goal.starts_below:.2f}"
            )
    if len(rows) < recipe.steps:
        shortcomings.append(f"{len(rows)} of {recipe.steps} steps were done")
    trained = rows[-1].get("version")
    if server_version is None or server_version != trained:
        shortcomings.append(
            f"the server holds version {server_version}, the trainer's last is {trained}"
        )
    if not compared:  # if they had differed, the trainer would have stopped
        shortcomings.append("server and trainer logprobs were never compared")
    return shortcomings
