"""Evaluation: its schedule during ``serve``, and the files and the table of its results.

metrics -> MetricsLogger (with step and policy version) -> metrics.json, table
samples -> samples.jsonl, transcripts.jsonl (groups by item, in the form of ``process``)
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.envs.rollout import pacing
from atroposlib.envs.rollout.groups import mean_metrics, plain, standard_errors
from atroposlib.envs.rollout.token_account import TokenAccount
from atroposlib.envs.runtime.checkpoint import replace_text
from atroposlib.envs.runtime.metrics_logger import MetricsLogger, scalars
from atroposlib.envs.runtime.registration import JoinedRun
from atroposlib.errors import AtroposError, boundary
from atroposlib.text.lines import json_line, strict
from atroposlib.trackers import finite_numbers
from atroposlib.utils.display import display_metrics_table
from atroposlib.wire import EnvStatus

logger = logging.getLogger(__name__)

TRANSCRIPTS = "transcripts.jsonl"
ROW = "row"  # key of a sample: tokens, masks, ... of its conversation; in transcripts only
ROW_FIELDS = ("tokens", "masks", "inference_logprobs", "versions")
NO_REWARD = frozenset({"answer", "expected", "id", "item", "reward", "score", "seed", "step"})


@dataclass
class PeriodicEvaluation:
    """Evaluation during ``serve``: its schedule and the measured policy version."""

    hook: Callable[[], Awaitable[Any]]
    run: JoinedRun
    metrics: MetricsLogger
    ended: Callable[[], None]  # called after each evaluation
    account: TokenAccount = field(default_factory=TokenAccount)
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

    def schedule(self, step: int) -> None:
        """Evaluate the weights of ``step`` next."""
        self.due = step

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
            with (
                boundary(self.run.label(), f"step {step}", "evaluate"),
                self.account.count_evaluation(),
            ):
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
        """Await the running evaluation, and run a last evaluation if it is due or configured.

        ``weights_of`` waits until the servers hold the weights of a step.
        """
        if self.task is not None:
            await self.task
        if evaluate_at_end or self.due is not None:
            await weights_of(self.run.step)
            await self.evaluate(self.run.step)


def eval_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with their names under ``eval/``."""
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
    samples: Sequence[Any] | None,
    measured_at: Mapping[str, Any] | None = None,
    verbose: bool = True,
    stderr: Mapping[str, float] | None = None,
) -> None:
    """Write the files, if there is a ``directory``, and print the table.

    The files are ``metrics.json`` and, with samples, ``samples.jsonl``; each is written whole
    or not at all. A sample is a mapping, else any value of JSON, which is only written. Samples
    with messages, or a prompt, also make :func:`transcripts`. Without
    ``stderr`` a metric has the standard error of the samples' field of its name, if it is the
    mean of that field. ``measured_at`` holds the step and the policy version, times are
    seconds since the epoch (by default now). A number that is not finite is written as null:
    JSON has no form for it. ``verbose`` False prints nothing; entries that are not numbers are
    left out of the table.
    """
    now, results = time.time(), scalars(metrics)
    started, ended = start_time or now, end_time or now
    records = [sample for sample in samples or () if isinstance(sample, Mapping)]
    if stderr is None:
        stderr = default_errors(records, results)
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
        "results": {f"atropos|{task}|0": plain(metrics), "all": plain(metrics)},
        **({"standard_errors": scalars(stderr)} if stderr else {}),
    }
    replace_text(
        directory / "metrics.json", json.dumps(strict(document), indent=2, default=repr)
    )
    if samples is not None:
        _write_lines(directory / "samples.jsonl", map(_without_row, samples))
        if any("messages" in record or "prompt" in record for record in records):
            _write_lines(directory / TRANSCRIPTS, transcripts(records, task))


def _write_lines(path: Path, values: Iterable[Any]) -> None:
    replace_text(path, "".join(json_line(plain(value)) for value in values))


def _without_row(sample: Any) -> Any:
    if not isinstance(sample, Mapping):
        return sample
    return {name: value for name, value in sample.items() if name != ROW}


def append_samples(path: Path, samples: Sequence[Any], step: int) -> None:
    """Add ``samples`` to a file that holds the samples of every evaluation of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for sample in samples:
            record = sample if isinstance(sample, Mapping) else {"sample": sample}
            file.write(json_line({"step": step, **plain(_without_row(record))}))


# --- samples by item: pure ---------------------------------------------------------------


def by_item(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Samples of each item: grouped by ``id``, ``item`` or ``seed``, else by prompt."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for place, sample in enumerate(samples):
        names = (sample.get(name) for name in ("id", "item", "seed", "prompt"))
        item = next((name for name in names if name is not None), place)
        groups.setdefault(
            item if isinstance(item, str) else json.dumps(plain(item)), []
        ).append(sample)
    return groups


def default_errors(
    samples: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]
) -> dict[str, float]:
    """The standard errors, clustered by item, of the metrics that are means of a field."""
    items = [mean_metrics(map(_numbers, tries)) for tries in by_item(samples).values()]
    means, errors = mean_metrics(items), standard_errors(items)
    return {
        name: error
        for name, error in errors.items()
        if isinstance(metrics.get(name), (int, float))
        and math.isclose(metrics[name], means[name], abs_tol=1e-9)
    }


def transcripts(samples: Sequence[Mapping[str, Any]], env: str) -> list[dict[str, Any]]:
    """Groups by item, in the form of the file of ``process``.

    Rows have ``messages``, or ``prompt`` and ``completion`` as messages; the score is
    ``reward``, ``score`` or ``exact``, None for a failed sample. The remaining numbers are the
    named rewards.
    """
    groups = []
    for item, rows in by_item(samples).items():
        numbers_G = list(map(_numbers, rows))
        named = [
            {k: v for k, v in numbers.items() if k not in NO_REWARD} for numbers in numbers_G
        ]
        about = {"item": item, "env": env, "named_rewards": named}
        errors = {"errors": [row.get("error") for row in rows]}
        group: dict[str, Any] = {
            "messages": [_conversation(row) for row in rows],
            "scores": [
                numbers.get("reward", numbers.get("score", numbers.get("exact")))
                for numbers in numbers_G
            ],
            "finish_reasons": [row.get("finish_reason") for row in rows],
            "metadata": {**about, **(errors if any(errors["errors"]) else {})},
        }
        for name in ROW_FIELDS:
            values = [(row.get(ROW) or {}).get(name) for row in rows]
            group.update({name: values} if any(values) else {})
        groups.append(group)
    return groups


def _numbers(sample: Mapping[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in scalars(sample).items() if isinstance(v, (int, float))}


def _conversation(sample: Mapping[str, Any]) -> list[Any]:
    if isinstance(sample.get("messages"), list):
        return list(sample["messages"])
    prompt, completion = sample.get("prompt") or [], sample.get("completion")
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if completion is None:
        return before
    calls = {"tool_calls": sample["tool_calls"]} if sample.get("tool_calls") else {}
    return [*before, {"role": "assistant", "content": completion, **calls}]
