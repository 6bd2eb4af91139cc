"""atropos eval diff A B: paired comparison of two evaluations over the same items.

    atropos eval diff evals/before evals/after
    atropos eval diff evals/before evals/after --metric exact --json

A and B are folders of evaluate (--env.data_dir_to_save_evals), or files of scored groups.
The interval is a paired bootstrap over the items: 10,000 resamples of the differences between
the means of an item, percentiles 2.5 and 97.5 (Efron and Tibshirani 1993, chapter 13).
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.envs.runtime.evaluation import TRANSCRIPTS, transcripts
from atroposlib.errors import ConfigError
from atroposlib.frontend.jsonl2html import numbered_groups
from atroposlib.frontend.page_groups import group_facts
from atroposlib.text.lines import json_lines
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import CommandParser

RESAMPLES = 10_000
SEED = 0
SCORES = ("reward", "score")  # names of the score in a sample
ITEMS_SHOWN = 20  # items of each list, on the terminal


@dataclass
class ItemResult:
    """Samples of an item in an evaluation; ``index`` is its place in the file, from 0 on."""

    index: int
    scores: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # characters of the answers
    finish: list[str] = field(default_factory=list)  # reasons


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison. Raises ConfigError: nothing to read, or the items differ."""
    parser = CommandParser(prog="atropos eval diff", description=__doc__)
    parser.add_argument("a", type=Path, metavar="A", help="folder or file")
    parser.add_argument("b", type=Path, metavar="B", help="folder or file")
    parser.add_argument("--metric", default="reward", help="a named reward (%(default)s)")
    parser.add_argument(
        "--solved", type=float, default=1.0, help="least score of a solved item (%(default)s)"
    )
    parser.add_argument("--shared", action="store_true", help="leave out items of one only")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    a, b = (read_items(path, options.metric) for path in (options.a, options.b))
    if a.keys() != b.keys() and not options.shared:
        both = len(a.keys() & b.keys())
        raise ConfigError(
            f"the items differ: {options.a} has {len(a)}, {options.b} has {len(b)}, {both} are "
            "in both; evaluate the same tasks, or add --shared to compare those"
        )
    result = {"metric": options.metric, **comparison_of(a, b, options.solved)}
    print(json.dumps(result) if options.json else "\n".join(comparison_lines(result)))
    return 0


def read_items(path: Path, metric: str) -> dict[str, ItemResult]:
    """Results by item of a folder or a file.

    Raises ConfigError: there are no samples, or none has the metric.
    """
    names = ("", TRANSCRIPTS, "samples.jsonl")
    file = next((path / name for name in names if (path / name).is_file()), None)
    if file is None:
        raise ConfigError(f"{path}: no {TRANSCRIPTS} of an evaluation and no file of groups")
    if file.name == "samples.jsonl":  # file of an evaluation without texts
        samples = json_lines(file.read_text(encoding="utf-8"))
        groups = transcripts(samples, "")
    else:
        groups = [group for _, group in numbered_groups(file)]
    results: dict[str, ItemResult] = {}
    for group in groups:
        item = str((group.get("metadata") or {}).get("item", len(results)))
        result = results.setdefault(item, ItemResult(len(results)))
        for sample in group_facts(group, len(results)).samples:
            value = sample.named.get(metric)
            value = sample.score if value is None and metric in SCORES else value
            if value is not None:
                result.scores.append(value)
                result.finish += [sample.finish] if sample.finish else []
        result.lengths += map(answer_length, group["messages"])
    if not any(result.scores for result in results.values()):
        raise ConfigError(f"{file}: no sample has a number {metric!r}")
    return results


def answer_length(messages: Any) -> int:
    """Characters that the model wrote: the texts of its messages."""
    if not isinstance(messages, list):
        return len(str(messages))
    replies = (m for m in messages if isinstance(m, Mapping) and m.get("role") == "assistant")
    return sum(len(str(message.get("content") or "")) for message in replies)


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
    better, worse = (
        sum(difference > 0 for difference in differences),
        sum(difference < 0 for difference in differences),
    )
    return {**result, "better": better, "worse": worse}


def bootstrap_interval(differences: Sequence[float]) -> tuple[float | None, float | None]:
    """Percentiles 2.5 and 97.5 of the mean over resampled items; None for fewer than two."""
    import numpy

    if len(differences) < 2:
        return None, None
    drawn, values = numpy.random.default_rng(SEED), numpy.asarray(differences)
    n = len(values)
    means = [values[drawn.integers(n, size=n)].mean() for _ in range(RESAMPLES)]
    low, high = numpy.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def comparison_lines(result: Mapping[str, Any]) -> list[str]:
    interval = "no interval from one item"
    if result["low"] is not None:
        interval = "95% interval {low:+.4f} to {high:+.4f}".format(**result)
    equal = result["items"] - result["better"] - result["worse"]
    lines = [
        "{metric} over {items} items: {mean_a:.4f} -> {mean_b:.4f}, difference "
        "{difference:+.4f}, ".format(**result)
        + interval,
        "better on {better} items, worse on {worse}, equal on ".format(**result) + str(equal),
        "characters of an answer: {length_a:.1f} -> {length_b:.1f}".format(**result),
    ]
    if result["finish_a"] or result["finish_b"]:
        before, after = map(_counts, (result["finish_a"], result["finish_b"]))
        lines.append(f"finish reasons: {before} -> {after}")
    if result["unscored"]:
        lines.append("{unscored} items are left out: all samples failed".format(**result))
    for name in ("A", "B"):
        items = result[f"only_{name.lower()}"]
        lines.append(f"solved by {name} only: {len(items)}")
        lines += [f"  {index}: {logs.printable(item)}" for index, item in items[:ITEMS_SHOWN]]
        if len(items) > ITEMS_SHOWN:
            lines.append(f"  and {len(items) - ITEMS_SHOWN} more (--json has all)")
    return lines


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{logs.printable(k)} {n}" for k, n in sorted(reasons.items())) or "none"
