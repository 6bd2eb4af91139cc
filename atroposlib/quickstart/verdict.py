"""Verdict on learning: from the metrics of a run to one line and the unmet criteria. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.live.sources import column
from atroposlib.quickstart.recipes import Recipe

LAST_STEPS = 5
# Nats a logprob of the server may differ from the trainer's, by the dtype of both. In a model of
# 30 narrow layers bfloat16 moves a token by 0.06 on average, and one in a thousand by more than 1,
# with the shape of the batch alone. 2 nats tell other weights, not those of the step before, which
# the version of the server tells.
MISMATCH_LIMIT = {"float32": 1e-3, "bfloat16": 2.0}
MISMATCH_COLUMNS = ("logprob_mismatch_max", "publish_mismatch_max")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunVerdict:
    """The figures of the summary line, and every unmet criterion."""

    exact_first: float | None  # mean of the first step: all of it sampled by version 0
    exact_last: float | None  # mean of the last LAST_STEPS steps
    reward_first: float | None
    reward_last: float | None
    seconds: float  # from the start of the first process to the end of the trainer
    steps: int
    server_version: int | None
    cores: int
    mismatch_max: float | None  # nats
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
    dtype: str = "float32",
) -> RunVerdict:
    """Compare the rows of metrics.jsonl with the goals of the recipe."""
    start, end = rows[:1], rows[-LAST_STEPS:]
    mismatches = [value for name in MISMATCH_COLUMNS for value in column(rows, name)]
    mismatch_max = max(mismatches, default=None)
    return RunVerdict(
        exact_first=mean(start, "env/exact"),
        exact_last=mean(end, "env/exact"),
        reward_first=mean(start, "reward_mean"),
        reward_last=mean(end, "reward_mean"),
        seconds=seconds,
        steps=len(rows),
        server_version=server_version,
        cores=cores,
        mismatch_max=mismatch_max,
        shortcomings=tuple(
            _shortcomings(recipe, rows, server_version, mismatch_max, MISMATCH_LIMIT[dtype])
        ),
    )


def _shortcomings(
    recipe: Recipe,
    rows: Sequence[Row],
    server_version: int | None,
    mismatch: float | None,
    limit: float,
) -> list[str]:
    if not rows:
        return ["the trainer finished no step"]
    found = []
    goal = recipe.goal
    start, end = mean(rows[:1], goal.metric), mean(rows[-LAST_STEPS:], goal.metric)
    if start is None or end is None:
        found.append(f"metrics.jsonl has no {goal.metric}")
    else:
        least = max(goal.ends_above, start)
        if not end > least:
            found.append(f"{goal.label} ended at {end:.2f}, not above {least:.2f}")
        if not start < goal.starts_below:
            found.append(
                f"{goal.label} started at {start:.2f}, not below {goal.starts_below:.2f}"
            )
    if len(rows) < recipe.steps:
        found.append(f"{len(rows)} of {recipe.steps} steps were done")
    trained = rows[-1].get("version")
    if server_version is None or server_version != trained:
        found.append(
            f"the server holds version {server_version}, the trainer's last is {trained}"
        )
    if mismatch is None:
        found.append("server and trainer logprobs were never compared")
    elif mismatch > limit:
        found.append(f"logprobs of server and trainer differ by {mismatch:.1e} nats")
    return found
