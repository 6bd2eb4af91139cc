"""Evaluation: the ``evaluate`` subcommand, and where results go.

metrics -> logbook (with step and policy version) -> metrics.json, samples.jsonl -> table
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.envs.rollout.groups import plain
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.metrics_logger import scalars
from atroposlib.errors import boundary
from atroposlib.utils.display import display_metrics_table

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
