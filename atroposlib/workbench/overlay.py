"""Curves of several runs in a chart: by step or by tokens, with mean and band over seeds.

Pure. Runs reach a number of tokens at different steps, so a curve is read between its points by
a straight line; a mean is taken only where every run of the group has a curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np

from atroposlib.trackers import finite_number

Axis = Literal["step", "tokens"]
AXES: tuple[Axis, ...] = ("step", "tokens")
TOKENS = ("completion_tokens", "tokens")  # sampled tokens that were trained on, else all
MAX_POINTS = 400
# Curves that a comparison shows first, where runs have them.
MAIN_KEYS = (
    "reward_mean",
    "entropy",
    "completion_length_mean",
    "approx_kl",
    "logprob_mismatch_mean",
    "staleness_mean",
)
Array = np.ndarray[Any, np.dtype[np.float64]]
Rows = Sequence[Mapping[str, Any]]
Point = tuple[float, float]
BandPoint = tuple[float, float, float, float]  # x, mean, lowest, highest


def xs_of(rows: Rows, axis: Axis) -> list[float]:
    """The place of each row on the axis."""
    if axis == "step":
        return [float(row.get("step", no)) for no, row in enumerate(rows, 1)]
    spent = [
        next((n for name in TOKENS if (n := finite_number(row.get(name))) is not None), 0.0)
        for row in rows
    ]
    return list(accumulate(spent))


def points_of(rows: Rows, key: str, axis: Axis) -> list[Point]:
    """The points of the rows that have the key."""
    values = (finite_number(row.get(key)) for row in rows)
    return [(x, y) for x, y in zip(xs_of(rows, axis), values) if y is not None]


def value_at(points: Sequence[Point], x: float) -> float | None:
    """The value at ``x``; None outside of the curve."""
    if not points or not points[0][0] <= x <= points[-1][0]:
        return None
    return float(values_at(points, [x])[0])


def values_at(points: Sequence[Point], xs: Sequence[float]) -> Array:
    """The values at ``xs``, all inside of the curve."""
    known = np.array(points)  # (points, 2)
    values: Array = np.interp(np.array(xs), known[:, 0], known[:, 1])
    return values


def band_of(curves: Sequence[Sequence[Point]]) -> list[BandPoint]:
    """Mean, lowest and highest of the curves, where all curves have values.

    Example: [(1, 0), (2, 2)] and [(1, 1), (2, 4)] give (1, 0.5, 0, 1), (2, 3, 2, 4).
    """
    curves = [curve for curve in curves if curve]
    if not curves:
        return []
    start = max(curve[0][0] for curve in curves)
    end = min(curve[-1][0] for curve in curves)
    xs = sparse_xs(sorted({x for curve in curves for x, _ in curve if start <= x <= end}))
    if not xs:
        return []
    values = np.stack([values_at(curve, xs) for curve in curves])  # (runs, x)
    means, lowest, highest = values.mean(axis=0), values.min(axis=0), values.max(axis=0)
    return [
        (x, float(mean), float(low), float(high))
        for x, mean, low, high in zip(xs, means, lowest, highest)
    ]


def sparse_xs(xs: Sequence[float]) -> list[float]:
    """At most ``MAX_POINTS`` of the values, the first and the last among them."""
    if len(xs) <= MAX_POINTS:
        return list(xs)
    return [xs[int(at)] for at in np.linspace(0, len(xs) - 1, MAX_POINTS)]


def curve_keys(runs: Sequence[Rows]) -> list[str]:
    """Names of all curves that a run has, those that a comparison shows first in front."""
    last = [row for rows in runs for row in (*rows[:1], *rows[-1:])]
    names = dict.fromkeys(name for row in last for name in row if name not in NO_CURVES)
    own = [name for name in names if name.startswith(("env/", "eval/"))]
    main = [MAIN_KEYS[0], *own, *MAIN_KEYS[1:]]
    front = [name for name in main if name in names]
    return [*front, *sorted(names.keys() - set(front))]


NO_CURVES = ("step", "time", "run_id", "resumed_from", "batch_no", "version")
