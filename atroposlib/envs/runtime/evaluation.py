"""Evaluation: its schedule during ``serve``, and the files and the table of its results.

metrics -> MetricsLogger (with step and policy version) -> metrics.json, samples.jsonl -> table
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.envs.rollout import pacing
from atroposlib.envs.rollout.groups import plain
from atroposlib.envs.runtime.checkpoint import write_whole
from atroposlib.envs.runtime.metrics_logger import MetricsLogger, scalars
from atroposlib.envs.runtime.registration import JoinedRun
from atroposlib.errors import AtroposError, boundary
from atroposlib.trackers import finite_numbers
from atroposlib.utils.display import display_metrics_table
from atroposlib.wire import EnvStatus

logger = logging.getLogger(__name__)


@dataclass
class PeriodicEvaluation:
    """Evaluation during ``serve``: schedule, one at a time, with the policy version measured."""

    hook: Callable[[], Awaitable[Any]]
    run: JoinedRun
    metrics: MetricsLogger
    ended: Callable[[], None]  # called after each evaluation
    task: asyncio.Task[None] | None = None
    due: int | None = None  # step whose weights are to be evaluated next
    _measured: tuple[int, int] | None = None  # step, version at the beginning

    def measured_at(self) -> dict[str, Any]:
        """Step and policy versions of the current or last evaluation; empty before the first."""
        if self._measured is None:
            return {}
        step, version = self._measured
        return {
            "eval_step": step,
            "eval_policy_version": version,
            "eval_policy_version_at_end": self.run.policy_version,
        }

    def start_if_due(self, status: EnvStatus) -> None:
        """Start the evaluation that is due, once the servers hold its weights."""
        if self.task is not None and self.task.done():
            self.task = None
        if self.due is None or self.task is not None:
            return
        if pacing.weights_have_settled(
            self.due, self.run.step, status.policy_version, status.queue_size
        ):
            step, self.due = self.due, None
            self.task = asyncio.ensure_future(self.evaluate(step))

    async def evaluate(self, step: int) -> None:
        """Evaluate the weights of ``step``. A failure is logged and counted; the run goes on."""
        self._measured = (step, self.run.policy_version)
        try:
            with boundary(self.run.label(), f"step {step}", "evaluate"):
                await self.hook()
        except AtroposError as error:
            # Training data does not depend on an evaluation.
            logger.error("%s", error, exc_info=error)
            self.metrics.emit({"eval/failed": 1}, self.run.step)
        finally:
            self.ended()

    async def finish(
        self, weights_of: Callable[[int], Awaitable[None]], *, evaluate_at_end: bool
    ) -> None:
        """Await the running evaluation, and do the last one if it is due or configured.

        ``weights_of`` waits until the servers hold the weights of a step.
        """
        if self.task is not None:
            await self.task
        if evaluate_at_end or self.due is not None:
            await weights_of(self.run.step)
            await self.evaluate(self.run.step)


def eval_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The same metrics under ``eval/``."""
    return {
        name if name.startswith("eval/") else f"eval/{name}": value
        for name, value in metrics.items()
    }


def report_results(
    directory: Path | None,
    metrics: Mapping[str, Any],
    *,
    task: str,
    model_name: str | None,
    start_time: float | None,
    end_time: float | None,
    generation_parameters: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]] | None,
    measured_at: Mapping[str, Any] | None = None,
    verbose: bool = True,
    stderr: Mapping[str, float] | None = None,
) -> None:
    """Write the files, if there is a ``directory`` for them, and print the table.

    They are ``metrics.json`` and, with samples, ``samples.jsonl``; each whole or not.
    ``measured_at`` holds the step and the policy version, times are seconds since the epoch (by
    default now). A number that is not finite is written as null: JSON has no form for it.
    ``verbose`` False prints nothing; entries that are not numbers are left out of the table.
    """
    now, results = time.time(), scalars(metrics)
    started, ended = start_time or now, end_time or now
    if verbose:
        display_metrics_table(task, finite_numbers(results), started, ended, stderr)
    if directory is None:
        return
    document = {
        "config_general": {
            "model_name": model_name,
            "total_evaluation_time_seconds": str(ended - started),
            "generation_parameters": plain(generation_parameters),
            **(measured_at or {}),
        },
        "results": {f"atropos|{task}|0": results, "all": results},
        **({"standard_errors": scalars(stderr)} if stderr else {}),
    }
    write_whole(directory / "metrics.json", json.dumps(document, indent=2))
    if samples is not None:
        lines = [json.dumps(plain(sample), ensure_ascii=False) + "\n" for sample in samples]
        write_whole(directory / "samples.jsonl", "".join(lines))


def append_samples(path: Path, samples: Sequence[Mapping[str, Any]], step: int) -> None:
    """Add ``samples`` to a file that holds those of every evaluation of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for sample in samples:
            line = {"step": step, **plain(sample)}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
