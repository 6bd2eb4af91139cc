"""Evaluation: the ``evaluate`` subcommand, and where results go.

metrics -> logbook (with step and policy version) -> metrics.json, samples.jsonl -> table
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.envs.rollout import pacing
from atroposlib.envs.rollout.groups import plain
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.metrics_logger import scalars
from atroposlib.errors import AtroposError, boundary
from atroposlib.utils.display import display_metrics_table
from atroposlib.wire import EnvStatus

logger = logging.getLogger(__name__)


async def run_evaluate(env: EnvRuntime) -> None:
    """Set up, evaluate once and close; a failing evaluation fails the command."""
    env.max_token_len = env.config.max_token_length
    try:
        with boundary(env.label(), None, "setup"):
            await env.setup()
        with boundary(env.label(), None, "evaluate"):
            await env.evaluate()
    finally:
        await env.close()


class Evaluations:
    """The evaluation under way and the step whose weights are to be evaluated next."""

    def __init__(self, env: EnvRuntime, policy_version: Callable[[], int]) -> None:
        self._env = env
        self._policy_version = policy_version
        self.task: asyncio.Task[None] | None = None
        self.due: int | None = None

    def start_if_due(self, status: EnvStatus) -> None:
        """Start the one that is due, once the servers hold the weights it is about."""
        if self.task is not None and self.task.done():
            self.task = None
        if self.due is None or self.task is not None:
            return
        if pacing.weights_have_settled(
            self.due, self._env.curr_step, status.policy_version, status.queue_size
        ):
            step, self.due = self.due, None
            self.task = asyncio.ensure_future(self.evaluate(step))
            self._env.eval_runner = self.task

    async def evaluate(self, step: int) -> None:
        """Evaluate the weights of ``step``. A failure is logged and counted; the run goes on."""
        env = self._env
        before = self._policy_version()
        env.measured_at = lambda: {
            "eval_step": step,
            "eval_policy_version": before,
            "eval_policy_version_at_end": self._policy_version(),
        }
        try:
            with boundary(env.label(), f"step {step}", "evaluate"):
                await env.evaluate()
        except AtroposError as error:
            # Training data does not depend on it, so the run goes on; the failure is seen.
            logger.error("%s", error, exc_info=error)
            env.logbook.emit({"eval/failed": 1}, env.curr_step)
        finally:
            env.pool.changed.set()

    async def at_the_end(self, weights_of: Callable[[int], Awaitable[None]]) -> None:
        """Finish the one under way and do the last one; ``weights_of`` waits for its weights."""
        env = self._env
        if self.task is not None:
            await self.task
        if env.config.eval_at_end or self.due is not None:
            await weights_of(env.curr_step)
            await self.evaluate(env.curr_step)


def eval_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The same metrics under ``eval/``."""
    return {
        name if name.startswith("eval/") else f"eval/{name}": value
        for name, value in metrics.items()
    }


def write_results(
    directory: Path,
    metrics: Mapping[str, Any],
    *,
    task: str,
    model_name: str | None,
    seconds: float,
    generation_parameters: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]] | None = None,
    measured_at: Mapping[str, Any] | None = None,
) -> None:
    """Write ``metrics.json`` and, when there are samples, ``samples.jsonl``; each whole.

    ``measured_at`` names the step and the policy version. A number that is not finite is
    written as null: JSON has no other word for it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    results = scalars(metrics)
    document = {
        "config_general": {
            "model_name": model_name,
            "total_evaluation_time_seconds": str(seconds),
            "generation_parameters": plain(generation_parameters),
            **(measured_at or {}),
        },
        "results": {f"atropos|{task}|0": results, "all": results},
    }
    _replace(directory / "metrics.json", json.dumps(document, indent=2))
    if samples is not None:
        lines = [json.dumps(plain(sample), ensure_ascii=False) + "\n" for sample in samples]
        _replace(directory / "samples.jsonl", "".join(lines))


def append_samples(path: Path, samples: Sequence[Mapping[str, Any]], step: int) -> None:
    """Add ``samples`` to a file that holds those of every evaluation of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for sample in samples:
            line = {"step": step, **plain(sample)}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def show_results(
    task: str, metrics: Mapping[str, Any], start_time: float, end_time: float
) -> None:
    """Print the table; entries that are not numbers are left out of it."""
    numbers = {
        name: value
        for name, value in scalars(metrics).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    display_metrics_table(task, numbers, start_time, end_time)
