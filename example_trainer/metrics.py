"""One line per step: JSON to a file, a short one to stdout, the same to wandb if asked."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.wire import ClaimedBatch
from example_trainer.config import TrainingConfig
from example_trainer.data import Batch, Row, staleness

SHOWN = ("reward_mean", "loss", "grad_norm", "clip_ratio", "entropy", "staleness_mean")


class Clock:
    """Seconds of each phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - start
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    def take(self) -> dict[str, float]:
        """``seconds_<phase>`` since the last call."""
        taken = {f"seconds_{phase}": round(s, 4) for phase, s in self.seconds.items()}
        self.seconds = {}
        return taken


class MetricsLog:
    """Appends to metrics.jsonl; a line is written whole and flushed."""

    def __init__(self, cfg: TrainingConfig) -> None:
        cfg.metrics_file.parent.mkdir(parents=True, exist_ok=True)
        self._file = cfg.metrics_file.open("a", encoding="utf-8")
        self._steps: list[dict[str, Any]] = []
        self._benchmark = cfg.benchmark
        self._wandb = _start_wandb(cfg) if cfg.use_wandb else None

    def write(self, record: dict[str, Any]) -> None:
        spent_s = record.get("seconds_train", 0.0)
        record = {**record, "tokens_per_s": record["tokens"] / spent_s if spent_s else None}
        clean = {name: _json_number(value) for name, value in record.items()}
        self._file.write(json.dumps(clean) + "\n")
        self._file.flush()
        self._steps.append(record)
        print(_line(record), flush=True)
        if self._wandb is not None:
            self._wandb.log({k: v for k, v in clean.items() if isinstance(v, (int, float))})

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._benchmark and self._steps:
            print(_benchmark_line(self._steps), flush=True)
        self._file.close()
        if self._wandb is not None:
            self._wandb.finish()


def batch_metrics(
    claimed: ClaimedBatch, batch: Batch, loss_rows: Sequence[Row], version: int
) -> dict[str, Any]:
    """What a batch tells by itself; ``version`` is that of the policy it will train."""
    rewards = [row.reward for row in batch.rows]
    ages = staleness(loss_rows, version)
    return {
        "batch_no": claimed.batch_no,
        "keys": [group.idempotency_key for group in claimed.batch or []],
        "group_ids": [group.group_id for group in claimed.batch or []],
        "reward_mean": statistics.fmean(rewards) if rewards else None,
        "reward_std": statistics.pstdev(rewards) if rewards else None,
        "staleness_mean": statistics.fmean(ages) if ages else None,
        "staleness_max": max(ages, default=None),
        "sequences": len(batch.rows),
        "tokens": sum(len(row.tokens) for row in loss_rows),
        "completion_tokens": sum(len(row.trained) for row in loss_rows),
        **batch.counts,
        **batch.env_metrics,
    }


def _json_number(value: Any) -> Any:
    """JSON has no NaN; a reader in another language would refuse the whole line."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(record: dict[str, Any]) -> str:
    shown = [f"{name} {record[name]:.4g}" for name in SHOWN if record.get(name) is not None]
    shown += [
        f"{name} {value:.4g}" for name, value in record.items() if name.startswith("env/")
    ]
    spent = sum(value for name, value in record.items() if name.startswith("seconds_"))
    return f"step {record['step']}: {', '.join(shown)}, {spent:.1f} s"


def _benchmark_line(steps: list[dict[str, Any]]) -> str:
    phases = sorted({name for step in steps for name in step if name.startswith("seconds_")})
    means = {p: sum(step.get(p, 0.0) for step in steps) / len(steps) for p in phases}
    tokens_per_s = sum(step["tokens_per_s"] or 0.0 for step in steps) / len(steps)
    parts = [f"{phase.removeprefix('seconds_')} {mean:.2f} s" for phase, mean in means.items()]
    return f"mean of {len(steps)} steps: {', '.join(parts)}, {tokens_per_s:.0f} tokens/s"


def _start_wandb(cfg: TrainingConfig) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError("use_wandb needs: pip install atroposlib[wandb]") from error
    return wandb.init(
        project=cfg.wandb_project, group=cfg.wandb_group, config=cfg.model_dump(mode="json")
    )
