"""Paired comparison of two sides over the same items: means, bootstrap interval, solved by one only.

Pure. The interval is a paired bootstrap over the items: 10,000 resamples of the differences between
the means of an item, percentiles 2.5 and 97.5 (Efron and Tibshirani 1993, chapter 13).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.utils.command import logs

RESAMPLES = 10_000
MIN_RESAMPLES = 1000
MAX_DRAWS = 200_000_000  # a few seconds; more than 20,000 items get fewer resamples
SEED = 0
ITEMS_SHOWN = 20  # items of each list, on the terminal


@dataclass
class ItemResult:
    """Samples of an item in an evaluation; ``index`` is its place in the file, from 0 on."""

    index: int
    scores: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # characters of the answers
    finish: list[str] = field(default_factory=list)  # reasons


def comparison_of(
    a: Mapping[str, ItemResult], b: Mapping[str, ItemResult], solved: float
) -> dict[str, Any]:
    """The numbers of B against A, over the items that have a score in both. Pure.

    ``only_a`` and ``only_b`` hold (index in A, item) of the items that only this side solves: with
    a sample of at least the score ``solved``. Raises ConfigError: no item has two scores.
    """
    shared = [item for item in a if item in b]
    kept = [item for item in shared if a[item].scores and b[item].scores]
    if not kept:
        raise ConfigError("no item has a score in both")
    result: dict[str, Any] = {"items": len(kept), "unscored": len(shared) - len(kept)}
    for name, side, opposite in (("a", a, b), ("b", b, a)):
        results = [side[item] for item in kept]
        result[f"mean_{name}"] = statistics.fmean(statistics.fmean(r.scores) for r in results)
        result[f"length_{name}"] = statistics.fmean(n for r in results for n in r.lengths)
        result[f"finish_{name}"] = dict(Counter(why for r in results for why in r.finish))
        result[f"only_{name}"] = [
            [a[item].index, item]
            for item in kept
            if max(side[item].scores) >= solved > max(opposite[item].scores)
        ]
    differences = [
        statistics.fmean(b[item].scores) - statistics.fmean(a[item].scores) for item in kept
    ]
    low, high = bootstrap_interval(differences)
    result |= {"difference": statistics.fmean(differences), "low": low, "high": high}
    better = sum(difference > 0 for difference in differences)
    worse = sum(difference < 0 for difference in differences)
    return {**result, "better": better, "worse": worse}


def bootstrap_interval(differences: Sequence[float]) -> tuple[float | None, float | None]:
    """Percentiles 2.5 and 97.5 of the mean over resampled items; None for fewer than two."""
    import numpy

    if len(differences) < 2:
        return None, None
    drawn, values = numpy.random.default_rng(SEED), numpy.asarray(differences)
    n = len(values)
    resamples = min(RESAMPLES, max(MIN_RESAMPLES, MAX_DRAWS // n))
    means = [values[drawn.integers(n, size=n)].mean() for _ in range(resamples)]
    low, high = numpy.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def comparison_lines(
    result: Mapping[str, Any],
    shown: int = ITEMS_SHOWN,
    length_unit: str = "characters",
    with_places: bool = True,  # places of the items in the file of A
) -> list[str]:
    """The comparison as text, with at most ``shown`` items of each side; 0: their counts alone."""
    interval = "no interval from one item"
    if result["low"] is not None:
        interval = "95% interval {low:+.4f} to {high:+.4f}".format(**result)
    equal = result["items"] - result["better"] - result["worse"]
    means = "{metric} over {items} items: {mean_a:.4f} -> {mean_b:.4f}".format(**result)
    lines = [
        f"{means}, difference {result['difference']:+.4f}, {interval}",
        "better on {better} items, worse on {worse}, equal on ".format(**result) + str(equal),
        f"{length_unit} of an answer: " + "{length_a:.1f} -> {length_b:.1f}".format(**result),
    ]
    if result["finish_a"] or result["finish_b"]:
        before, after = map(_counts, (result["finish_a"], result["finish_b"]))
        lines.append(f"finish reasons: {before} -> {after}")
    if result["unscored"]:
        lines.append("{unscored} items are left out: all samples failed".format(**result))
    for name in ("A", "B"):
        items = result[f"only_{name.lower()}"]
        lines.append(f"solved by {name} only: {len(items)}")
        for index, item in items[:shown]:
            place = f"{index}: " if with_places else ""
            lines.append(f"  {place}{logs.printable(item)}")
        if len(items) > shown > 0:
            lines.append(f"  and {len(items) - shown} more (--json has all)")
    return lines


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{logs.printable(k)} {n}" for k, n in sorted(reasons.items())) or "none"
