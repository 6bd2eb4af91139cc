"""Metrics of a step: a record for metrics.jsonl, the trackers and the screen.

    batch_metrics (the batch) --.
    StepMetrics (learning)  ------+--> record --> MetricsLog.write --> jsonl, trackers, display
    Clock (seconds of phases) --'

A record is flat; metrics.jsonl keeps these names, ``tracker_name`` maps each to its name in
trackers. In nats per token unless stated otherwise:

    loss, entropy, approx_kl, importance_weight, clip_ratio, dual_clip_ratio    over trained tokens
    pos_logp, neg_logp        policy logprob of tokens with a positive, a negative advantage
    {training,inference}_logprob_{mean,std}, logprob_diff_{mean,abs_mean,max}   policy, sampler
    reward_{mean,std}         over rows
    staleness_{mean,p95,max}  versions between sampling and this step, over trained tokens
    prompt_length_*, completion_length_*    tokens; completion: the trained tokens of a row
    truncated_share           of the rows whose finish reason is known
    kl_reference              KL to the reference model, where it is a term of the reward
    {loss,clip_ratio,...}/ENV metrics of an environment that has an algorithm
    filtered_share            of the rows that came and did not enter the loss
    padding_share             of the positions that were computed
    tokens_per_s              tokens of rows in the loss / seconds of preparing and training
    seconds_<phase>           wall time of the loop in each phase
    recovery_{write_s,bytes}  of a recovery checkpoint that was written in the background
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from atroposlib import trackers
from atroposlib.errors import ConfigError
from atroposlib.trackers.jsonl import EVALUATED, RESUMED, Jsonl
from atroposlib.trackers.services import DEFAULT_PROJECT, Run
from atroposlib.utils.metrics import percentile
from atroposlib.wire import ClaimedBatch
from example_trainer.advantage.prepare import Prepared
from example_trainer.advantage.rewards import TRUNCATED
from example_trainer.data.rows import Row, TrainingBatch, token_staleness
from example_trainer.run.display import Display
from example_trainer.run.evaluation import Evaluation
from example_trainer.settings.run import WatchSettings
from example_trainer.weights.agreement import Agreement, Tokens

logger = logging.getLogger(__name__)
TRAINING_PHASES = ("prepare", "learn", "train")


class Clock:
    """Wall time of each phase of a step, in seconds."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += time.monotonic() - start

    def take(self) -> dict[str, float]:
        """Return ``seconds_<phase>`` since the last call."""
        taken = {f"seconds_{phase}": round(s, 4) for phase, s in self.seconds.items()}
        self.seconds.clear()
        return taken


def mismatch_details(record: Mapping[str, Any], agreement: Agreement) -> dict[str, Any]:
    """Details of a heartbeat: the mismatch of a step that is nearest to its limit, in nats.

    Of bfloat16 the mean, else the largest of a token.
    """
    pairs = []
    for name, tokens in (("logprob", Tokens.SAMPLED), ("publish", Tokens.GIVEN)):
        most = agreement.most(tokens)
        value = record.get(f"{name}_mismatch_{'max' if most is None else 'mean'}")
        if value is not None:
            pairs.append((value, agreement.tolerance if most is None else most))
    if not pairs:
        return {}
    value, bound = max(pairs, key=lambda pair: pair[0] / pair[1])
    return {"mismatch": value, "mismatch_bound": bound}


class MetricsLog:
    """Writes the record of every step to all outputs. Only rank 0 has a log; close it to
    flush trackers.

    Args:
        cfg: all of its settings are shown in the trackers.

    Raises:
        ConfigError: the metrics file cannot be written, or a tracker is not installed.
    """

    def __init__(self, cfg: WatchSettings, display: Display) -> None:
        for name in cfg.tracker_names:
            trackers.require_tracker(name)
        self._cfg = cfg
        try:
            self._file = Jsonl(cfg.metrics_file)
        except OSError as error:
            raise ConfigError(f"metrics_path {cfg.metrics_file}: {error.strerror}") from error
        self._display = display
        self._run_id: str | None = None
        self._trackers: list[trackers.Guarded] | None = None  # None: not started yet
        self._times = _Times()

    def begin(self, run_id: str, step: int) -> None:
        """Start the run's record in every output; ``step`` steps are done already.

        Trackers go on with a run of the same id instead of starting another.

        Raises:
            ConfigError: a tracker has no account or refuses its settings.
        """
        self._run_id = run_id
        again = self._file.rewind(run_id, step)
        if again:
            logger.info(f"{again} lines of steps after {step} are removed from the metrics")
        if step:
            self._file.write({"run_id": run_id, RESUMED: step})
        self._start_trackers(step)

    def write(self, record: Mapping[str, Any]) -> None:
        """Log a step; ``record`` has ``step``, ``tokens``, and ``seconds_<phase>``."""
        if self._trackers is None:
            self._start_trackers(record["step"] - 1)
        spent_s = sum(record.get(f"seconds_{phase}", 0.0) for phase in TRAINING_PHASES)
        whole = {**record, "tokens_per_s": record["tokens"] / spent_s if spent_s else None}
        whole["time"] = round(time.time(), 3)
        if self._run_id is not None:
            whole["run_id"] = self._run_id
        numbers = tracked_numbers(whole)
        for tracker in self._trackers or []:
            tracker.log(numbers, record["step"])
            whole[f"failures_{tracker.name}"] = tracker.failures
        self._file.write(whole)
        self._times.add(whole)
        self._display.step(whole)

    def log_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluation that ended later than its step, under its own step and version.

        Trackers take steps in any order: for wandb ``services`` defines an axis.
        """
        numbers = evaluation.metrics()
        if self._trackers is not None and numbers:
            for tracker in self._trackers:
                tracker.log(numbers, evaluation.step)
        line: dict[str, Any] = {
            EVALUATED: evaluation.step,
            "evaluated_version": evaluation.version,
            "evaluation": evaluation.outcome.value,
            "evaluation_s": evaluation.seconds,
            **numbers,
        }
        if evaluation.problem is not None:
            line["evaluation_problem"] = evaluation.problem
        if self._run_id is not None:
            line["run_id"] = self._run_id
        self._file.write({**line, "time": round(time.time(), 3)})

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        for tracker in self._trackers or []:
            tracker.close()
        if self._cfg.benchmark and self._times.steps:
            logger.info(self._times.line())
        self._file.close()

    def _start_trackers(self, step: int) -> None:
        run = Run(
            name=self._cfg.run_name,
            project=self._cfg.wandb_project or DEFAULT_PROJECT,
            group=self._cfg.wandb_group,
            run_id=self._run_id,
            step=step,
            directory=Path(self._cfg.log_dir),
            settings=self._cfg.model_dump(mode="json", exclude={"inference_token"}),
        )
        self._trackers = [
            trackers.Guarded(name, partial(trackers.open_tracker, name, run))
            for name in self._cfg.tracker_names
        ]


@cache
def warn_once(sentence: str) -> None:
    """Log a warning the first time that this process has it."""
    logger.warning(sentence)


def batch_metrics(
    claimed: ClaimedBatch, batch: TrainingBatch, prepared: Prepared, version: int
) -> dict[str, Any]:
    """Metrics of a batch; ``version`` is that of the policy that trains on it.

    Every rank has the whole batch, so these are the same on all ranks.
    """
    loss_rows, tokens = prepared.rows, max(1, prepared.tokens)
    rewards = [row.reward for row in batch.rows]
    ages = token_staleness(loss_rows, version)
    return {
        "batch_no": claimed.batch_no,
        "keys": [group.idempotency_key for group in claimed.batch or []],
        "group_ids": [group.group_id for group in claimed.batch or []],
        "reward_mean": statistics.fmean(rewards) if rewards else None,
        "reward_std": statistics.pstdev(rewards) if rewards else None,
        "staleness_mean": statistics.fmean(ages) if ages else None,
        "staleness_p95": percentile(ages, 0.95) if ages else None,
        "staleness_max": max(ages, default=None),
        "staleness_counts": dict(sorted(Counter(ages).items())),  # versions -> tokens
        "sequences": len(batch.rows),
        "tokens": sum(len(row.tokens) for row in loss_rows),
        "completion_tokens": prepared.tokens,
        "filtered_share": _filtered_share(batch, loss_rows),
        "truncated_share": _truncated_share(batch.rows),
        **_lengths(batch.rows),
        **{name: total / tokens for name, total in prepared.sums.items()},
        **prepared.metrics,
        **batch.counts,
        **prepared.counts,
        **batch.env_metrics,
    }


def _filtered_share(batch: TrainingBatch, loss_rows: Sequence[Row]) -> float | None:
    dropped = sum(n for name, n in batch.counts.items() if name.startswith("dropped_"))
    came = len(batch.rows) + dropped
    return 1 - len(loss_rows) / came if came else None


def _truncated_share(rows: Sequence[Row]) -> float | None:
    known = [row.finish_reason for row in rows if row.finish_reason is not None]
    return known.count(TRUNCATED) / len(known) if known else None


def _lengths(rows: Sequence[Row]) -> dict[str, float | None]:
    """Prompt and completion lengths of rows; the prompt ends before the first trained token."""
    trained = [positions for row in rows if (positions := row.trained)]
    lengths: dict[str, float | None] = {}
    for name, values in (
        ("prompt_length", [positions[0] + 1 for positions in trained]),
        ("completion_length", [len(positions) for positions in trained]),
    ):
        lengths[f"{name}_mean"] = statistics.fmean(values) if values else None
        lengths[f"{name}_max"] = max(values, default=None)
    return lengths


class _Times:
    """Mean seconds of every phase and tokens per second, for ``benchmark``."""

    def __init__(self) -> None:
        self.steps = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tokens_per_s = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        self.steps += 1
        self._tokens_per_s += record["tokens_per_s"] or 0.0
        for name, value in record.items():
            if name.startswith("seconds_"):
                self._seconds[name.removeprefix("seconds_")] += value

    def line(self) -> str:
        phases = [f"{p} {s / self.steps:.2f} s" for p, s in sorted(self._seconds.items())]
        rate = self._tokens_per_s / self.steps
        return f"mean of {self.steps} steps: {', '.join(phases)}, {rate:.0f} tokens/s"


NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "pos_logp": "train/pos_logp",
    "neg_logp": "train/neg_logp",
    "seconds_train": "train/step_time",
    "seconds_publish": "train/sync_time",
    "seconds_wait": "train/data_fetch_time",
    "gpu_memory_gb": "train/gpu_memory_gb",
    "gpu_memory_reserved_gb": "train/gpu_memory_reserved_gb",
    "ratio_mean": "grpo/mean_ratio",
    "clip_ratio": "grpo/clipped_fraction",
    "training_logprob_mean": "logprobs/training_mean",
    "training_logprob_std": "logprobs/training_std",
    "inference_logprob_mean": "logprobs/inference_mean",
    "inference_logprob_std": "logprobs/inference_std",
    "logprob_diff_mean": "alignment/diff_mean",
    "logprob_diff_abs_mean": "alignment/diff_abs_mean",
    "logprob_diff_max": "alignment/diff_max",
}
# Sections of our metrics in a dashboard: first word of the name -> section.
SECTIONS = {
    "seconds": "time",
    "reward": "reward",
    "staleness": "staleness",
    "prompt": "lengths",
    "completion": "lengths",
    "truncated": "lengths",
    "publish": "alignment",
    "logprob": "alignment",
}
NOT_METRICS = ("step", "time", "batch_no")  # step axis and file-only metrics


def tracker_name(name: str) -> str:
    """Return the name of a metric in trackers.

    Example: "loss" is "train/loss", "reward_mean" is "reward/mean", "env/exact" stays, and
    "tokens" is "train/tokens".
    """
    if name in NAMES:
        return NAMES[name]
    if "/" in name:
        return name
    word, _, rest = name.partition("_")
    section = SECTIONS.get(word)
    if section is None or not rest:
        return f"train/{name}"
    return f"{section}/{name if section in ('lengths', 'alignment') else rest}"


def tracked_numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record under their tracker names."""
    return {
        tracker_name(name): value
        for name, value in trackers.finite_numbers(record).items()
        if name not in NOT_METRICS
    }
