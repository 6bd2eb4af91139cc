"""Summary statistics under the names that dashboards expect."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def get_std_min_max_avg(
    name: str, data: Sequence[float], metrics_dict: dict[str, float]
) -> dict[str, float]:
    """Add ``<name>_mean``, ``_std`` (population), ``_max``, ``_min`` to ``metrics_dict``.

    Returns ``metrics_dict``; an empty ``data`` adds nothing.
    """
    if len(data):  # also an array, whose truth is not its length
        data = [float(value) for value in data]
        metrics_dict[f"{name}_mean"] = statistics.fmean(data)
        metrics_dict[f"{name}_std"] = statistics.pstdev(data)
        metrics_dict[f"{name}_max"] = max(data)
        metrics_dict[f"{name}_min"] = min(data)
    return metrics_dict


def percentile(data: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` (0..1) of ``data`` does not exceed."""
    ordered = sorted(data)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
