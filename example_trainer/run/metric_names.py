"""What metrics are called in trackers: as the original trainer called them, where it had them.

Old dashboards keep working. metrics.jsonl has the names at the left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
# Ours, in sections that a dashboard shows together: first word of the name -> section.
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
NOT_METRICS = ("step", "time", "batch_no")  # the axis, and what only the file needs


def tracker_name(name: str) -> str:
    """The name of a metric in trackers.

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


def tracked(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record under their names in trackers."""
    return {
        tracker_name(name): float(value)
        for name, value in record.items()
        if name not in NOT_METRICS
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
    }
