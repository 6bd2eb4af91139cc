"""Metrics of an environment: the runtime's measurements, and the sinks that record them.

Metrics go to the log and to sinks: a jsonl file (``metrics_path``), and each tracker. A sink
receives ``(metrics, step)`` and drops values that it cannot show, for example a table in a
file.
"""

from __future__ import annotations

import logging
import random
import string
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from atroposlib.envs.rollout.groups import plain
from atroposlib.envs.runtime.registration import JoinedRun
from atroposlib.envs.runtime.reports import Reports
from atroposlib.envs.runtime.sender import GroupStats
from atroposlib.envs.settings.readable import recorded
from atroposlib.trackers import Guarded, finite_numbers, is_installed, open_tracker
from atroposlib.trackers.jsonl import Jsonl, json_number
from atroposlib.trackers.services import Run
from atroposlib.utils.metrics import get_std_min_max_avg, percentile

# Prefixes of metrics that go to the sinks only.
UNLOGGED = ("train_perf/", "server/", "train/completion_lengths_")
logger = logging.getLogger(__name__)
REPORTED_ROLLOUTS = "failed timed_out cancelled short retried gave_up empty".split()


class MetricsLogger:
    """Sinks of a run, and the measurements that the next emission reports."""

    def __init__(self, env: str, metrics_path: str | None) -> None:
        self.sinks: list[JsonlSink | TrackerSink | Reports] = []
        if metrics_path:
            self.sinks.append(JsonlSink(Path(metrics_path), env))
        self.is_closed = False
        self.level = logging.INFO  # level of the lines in the log
        self._env = env
        self._values: dict[str, list[float]] = {}
        self.completion_lengths: list[int] = []  # trained tokens of each sequence
        self.rollouts: list[list[tuple[Any, ...]]] = []  # rows of the table, by group
        self.task_duration: list[float] = []  # seconds of each rollout
        self.succeeded_task_duration: list[float] = []
        self.failed_task_duration: list[float] = []
        self.task_successful: list[int] = []  # 1: scored
        self.mainloop_timings: list[float] = []  # seconds of each turn of ``serve``
        self.workers_added_list: list[int] = []

    def log(self, name: str, value: float) -> None:
        """Record ``value``; the next emission reports the mean since the last emission."""
        self._values.setdefault(name, []).append(float(value))

    def add_lengths(self, lengths: Iterable[int]) -> None:
        """Record the trained tokens of sequences."""
        self.completion_lengths.extend(lengths)

    def add_rollouts(self, rows: list[tuple[Any, ...]], keep: int) -> None:
        """Add the rows of a group to the table, which keeps the last ``keep`` groups."""
        self.rollouts = [*self.rollouts, rows][-keep:] if keep else []

    def drop_rollouts(self) -> None:
        """Empty the table."""
        self.rollouts = []

    def quiet(self) -> None:
        """Log at the level debug from now on."""
        self.level = logging.DEBUG

    def rollout_ended(self, seconds: float, *, scored: bool) -> None:
        """Record the duration of a rollout."""
        self.task_duration.append(seconds)
        self.task_successful.append(int(scored))
        durations = self.succeeded_task_duration if scored else self.failed_task_duration
        durations.append(seconds)

    def averages(self) -> dict[str, float]:
        """The mean of each recorded name; empties the record."""
        values, self._values = self._values, {}
        return {name: sum(seen) / len(seen) for name, seen in values.items()}

    def training_metrics(
        self, stats: GroupStats, rollouts: Mapping[str, int]
    ) -> dict[str, float]:
        """``train/completion_lengths*`` in trained tokens, and counts of groups and rollouts.

        ``rollouts`` are the counts of the worker pool. Empties the lengths.
        """
        metrics: dict[str, float] = {}
        lengths, self.completion_lengths = self.completion_lengths, []
        if lengths:
            get_std_min_max_avg("train/completion_lengths", lengths, metrics)
            metrics["train/completion_lengths"] = metrics.pop("train/completion_lengths_mean")
            metrics["train/completion_lengths_p95"] = percentile(lengths, 0.95)
        metrics["train/items_sent_to_api"] = stats.sent
        metrics["train/items_rejected"] = sum(stats.dropped.values())
        for name, count in stats.by_reason().items():
            metrics[f"train/{name}"] = count
        for name in REPORTED_ROLLOUTS:
            if count := rollouts.get(name, 0):
                metrics[f"train/rollouts_{name}"] = count
        return metrics

    def performance_metrics(self) -> dict[str, float]:
        """``train_perf/*``, in seconds, of lists with two or more values. Empties the lists."""
        metrics: dict[str, float] = {}
        measured: dict[str, list[Any]] = {
            "task_duration": self.task_duration,
            "succeeded_task_duration": self.succeeded_task_duration,
            "failed_task_duration": self.failed_task_duration,
            "mainloop_timings": self.mainloop_timings,
            "workers_added_per_attempt": self.workers_added_list,
        }
        for name, values in measured.items():
            if len(values) >= 2:
                get_std_min_max_avg(f"train_perf/{name}", values, metrics)
            values.clear()
        return metrics

    def emit(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log ``metrics`` of all rollouts, else of kept rollouts, and write all to every sink."""
        words = []
        for name, value in scalars(metrics).items():
            short = name.removeprefix("train/")
            of_all = short != name and f"rollouts/{short}" in metrics
            if of_all or name.startswith(UNLOGGED):
                continue
            shown = f"{value:.4g}" if isinstance(value, float) else value
            words.append(f"{short.removeprefix('rollouts/')} {shown}")
        logger.log(self.level, "%s step %d: %s", self._env, step, ", ".join(words))
        for sink in self.sinks:
            sink.write(metrics, step)

    def open_trackers(self, run: JoinedRun) -> None:
        """Record in the trackers of the settings too, each in a new run.

        ``use_wandb`` without the package is a line of the log, if a setting asks for it.
        Raises ConfigError: a tracker requires an account.
        """
        names = run.config.tracker_names
        if "wandb" in names and not is_installed("wandb"):
            if run.config.model_fields_set & {"use_wandb", "trackers"}:
                logger.warning("wandb is not installed: metrics are recorded without it")
            names.remove("wandb")
        suffix = "".join(random.choices(string.ascii_lowercase, k=6))
        tracked = Run(
            name=f"{run.label()}-{date.today().isoformat()}-{suffix}",
            project=run.project or None,
            group=run.group or None,
            directory=Path(run.config.log_dir),
            settings=recorded(run.config),
        )
        prefix = f"{run.name}_" if run.name else ""
        for name in names:
            guarded = Guarded(name, partial(open_tracker, name, tracked))
            self.sinks.append(TrackerSink(guarded, prefix))

    @property
    def shows_tables(self) -> bool:
        """Whether a sink takes tables."""
        return any(getattr(sink, "shows_tables", False) for sink in self.sinks)

    def close(self) -> None:
        """Flush and close every sink; a second call does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        for sink in self.sinks:
            sink.close()


def scalars(metrics: Mapping[str, Any]) -> dict[str, float | int | str | bool | None]:
    """The entries that are a single number or word; NaN becomes null, tables are left out."""
    shown: dict[str, float | int | str | bool | None] = {}
    for name, value in metrics.items():
        value = json_number(plain(value))
        if value is None or isinstance(value, (bool, int, float, str)):
            shown[name] = value
    return shown


@dataclass
class JsonlSink:
    """A JSON object per emission: time, env, step, then the metrics."""

    path: Path
    env: str
    _file: Jsonl | None = None  # opened by the first emission

    def write(self, metrics: Mapping[str, Any], step: int) -> None:
        """Append a line and flush it, so that a crash loses no measurement."""
        self._file = self._file or Jsonl(self.path)
        head = {"time": time.time(), "env": self.env, "step": step}
        self._file.write({**head, **scalars(metrics)})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class TrackerSink:
    """A tracker: wandb takes every value, the remaining trackers take the finite numbers.

    ``prefix`` goes before names that begin with ``train``: environments share a group in a
    tracker.
    """

    def __init__(self, tracker: Guarded, prefix: str = "") -> None:
        self._tracker = tracker
        self._prefix = prefix
        self.shows_tables = tracker.name == "wandb"

    def write(self, metrics: Mapping[str, Any], step: int) -> None:
        shown = metrics if self.shows_tables else finite_numbers(scalars(metrics))
        self._tracker.log(
            {
                self._prefix + name if name.startswith("train") else name: value
                for name, value in shown.items()
            },
            step,
        )

    def close(self) -> None:
        self._tracker.close()


def rollout_table(rollouts: list[list[tuple[Any, ...]]]) -> Any:
    """A wandb table of (text, score, ...) rows; only called with a wandb sink open."""
    import wandb

    rows = [list(row) for group in rollouts for row in group]
    width = max((len(row) for row in rows), default=2)
    columns: list[str | int] = ["text", "score", *(f"column_{i}" for i in range(2, width))]
    table = wandb.Table(columns=columns)
    for row in rows:
        table.add_data(*row, *([None] * (width - len(row))))
    return table
