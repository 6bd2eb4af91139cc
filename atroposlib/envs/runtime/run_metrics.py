"""The runtime's own metrics: lengths of completions, durations, counts. Lists are emptied."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.utils.metrics import get_std_min_max_avg, percentile


def training_metrics(env: EnvRuntime) -> dict[str, float]:
    """``train/completion_lengths*`` in trained tokens, and what became of the groups."""
    metrics: dict[str, float] = {}
    lengths, env.completion_lengths = env.completion_lengths, []
    if lengths:
        get_std_min_max_avg("train/completion_lengths", lengths, metrics)
        metrics["train/completion_lengths"] = metrics.pop("train/completion_lengths_mean")
        metrics["train/completion_lengths_p95"] = percentile(lengths, 0.95)
    metrics["train/items_sent_to_api"] = env.tally.sent
    metrics["train/items_rejected"] = sum(env.tally.dropped.values())
    for reason, count in env.tally.dropped.items():
        metrics[f"train/dropped_{reason}"] = count
    for outcome, count in env.tally.samples.items():
        metrics[f"train/samples_{outcome}"] = count
    for name in ("failed", "timed_out", "cancelled", "short", "retried", "gave_up", "empty"):
        if env.pool.counts[name]:
            metrics[f"train/rollouts_{name}"] = env.pool.counts[name]
    return metrics


def performance_metrics(env: EnvRuntime) -> dict[str, float]:
    """``train_perf/*`` in seconds; each needs two samples to say anything about spread."""
    metrics: dict[str, float] = {}
    measured: dict[str, list[Any]] = {
        "task_duration": env.task_duration,
        "succeeded_task_duration": env.succeeded_task_duration,
        "failed_task_duration": env.failed_task_duration,
        "mainloop_timings": env.mainloop_timings,
        "workers_added_per_attempt": env.workers_added_list,
    }
    for name, values in measured.items():
        if len(values) >= 2:
            get_std_min_max_avg(f"train_perf/{name}", values, metrics)
        values.clear()
    return metrics
