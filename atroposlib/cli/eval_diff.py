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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.envs.runtime.evaluation import TRANSCRIPTS, transcripts
from atroposlib.errors import ConfigError
from atroposlib.frontend.jsonl2html import group_view, read_groups
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import CommandParser

RESAMPLES = 10_000
SEED = 0
ITEMS_SHOWN = 20  # of each list, on the terminal


@dataclass
class ItemResult:
    """Samples of one item in one evaluation; ``index`` is its place in the file, from 0 on."""

    index: int
    scores: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)  # characters of the answers
    finish: list[str] = field(default_factory=list)  # reasons


@dataclass(frozen=True)
class Comparison:
    """B against A over the items that have a score in both; ``only_*`` hold (index in A, item)."""

    metric: str
    items: int
    unscored: int  # items left out, because all samples of one side failed
    mean_a: float
    mean_b: float
    difference: float
    low: float | None  # of the interval; None for a single item
    high: float | None
    better: int  # items
    worse: int
    only_a: list[tuple[int, str]]  # solved by A only
    only_b: list[tuple[int, str]]
    length_a: float
    length_b: float
    finish_a: dict[str, int]
    finish_b: dict[str, int]


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
    found = compare(a, b, options.metric, options.solved)
    print(json.dumps(asdict(found)) if options.json else "\n".join(lines_of(found)))
    return 0


def read_items(path: Path, metric: str) -> dict[str, ItemResult]:
    """Results by item of a folder or a file.

    Raises ConfigError: there are no samples, or none has the metric.
    """
    names = ("", TRANSCRIPTS, "samples.jsonl")
    file = next((path / name for name in names if (path / name).is_file()), None)
    if file is None:
        raise ConfigError(f"{path}: no {TRANSCRIPTS} of an evaluation and no file of groups")
    if file.name == "samples.jsonl":  # of an evaluation without texts
        samples = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        groups = transcripts(samples, "")
    else:
        groups = [group for _, group in read_groups(file)]
    found: dict[str, ItemResult] = {}
    for group in groups:
        item = str((group.get("metadata") or {}).get("item", len(found)))
        result = found.setdefault(item, ItemResult(len(found)))
        for sample in group_view(group, len(found)).samples:
            value = sample.score if metric == "reward" else sample.named.get(metric)
            if value is not None:
                result.scores.append(value)
                result.finish += [sample.finish] if sample.finish else []
        result.lengths += map(answer_length, group["messages"])
    if not any(result.scores for result in found.values()):
        raise ConfigError(f"{file}: no sample has a number {metric!r}")
    return found


def answer_length(messages: Any) -> int:
    """Characters that the model wrote: the texts of its messages."""
    if not isinstance(messages, list):
        return len(str(messages))
    said = (m for m in messages if isinstance(m, Mapping) and m.get("role") == "assistant")
    return sum(len(str(message.get("content") or "")) for message in said)


def compare(
    a: Mapping[str, ItemResult], b: Mapping[str, ItemResult], metric: str, solved: float
) -> Comparison:
    """Compare the items that both have. Raises ConfigError: there is none with two scores.

    An item is solved if a sample of it has at least the score ``solved``. Pure.
    """
    shared = [item for item in a if item in b]
    kept = [item for item in shared if a[item].scores and b[item].scores]
    if not kept:
        raise ConfigError("no item has a score in both")
    means_a = [statistics.fmean(a[item].scores) for item in kept]
    means_b = [statistics.fmean(b[item].scores) for item in kept]
    differences = [y - x for x, y in zip(means_a, means_b, strict=True)]
    low, high = bootstrap_interval(differences)
    right = {item: (max(a[item].scores), max(b[item].scores)) for item in kept}
    both = [[results[item] for item in kept] for results in (a, b)]
    finish = [dict(Counter(why for one in side for why in one.finish)) for side in both]
    length = [statistics.fmean(n for one in side for n in one.lengths) for side in both]
    return Comparison(
        metric=metric,
        items=len(kept),
        unscored=len(shared) - len(kept),
        mean_a=statistics.fmean(means_a),
        mean_b=statistics.fmean(means_b),
        difference=statistics.fmean(differences),
        low=low,
        high=high,
        better=sum(one > 0 for one in differences),
        worse=sum(one < 0 for one in differences),
        only_a=[(a[i].index, i) for i, (x, y) in right.items() if x >= solved > y],
        only_b=[(a[i].index, i) for i, (x, y) in right.items() if y >= solved > x],
        length_a=length[0],
        length_b=length[1],
        finish_a=finish[0],
        finish_b=finish[1],
    )


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


def lines_of(found: Comparison) -> list[str]:
    """The comparison as lines of text."""
    interval = (
        "no interval from one item"
        if found.low is None or found.high is None
        else f"95% interval {found.low:+.4f} to {found.high:+.4f}"
    )
    lines = [
        f"{found.metric} over {found.items} items: {found.mean_a:.4f} -> {found.mean_b:.4f}, "
        f"difference {found.difference:+.4f}, {interval}",
        f"better on {found.better} items, worse on {found.worse}, "
        f"equal on {found.items - found.better - found.worse}",
        f"characters of an answer: {found.length_a:.1f} -> {found.length_b:.1f}",
    ]
    if found.finish_a or found.finish_b:
        before, after = map(_counts, (found.finish_a, found.finish_b))
        lines.append(f"finish reasons: {before} -> {after}")
    if found.unscored:
        lines.append(f"{found.unscored} items are left out: all samples of one side failed")
    for name, items in (("A", found.only_a), ("B", found.only_b)):
        lines.append(f"solved by {name} only: {len(items)}")
        lines += [f"  {index}: {logs.printable(item)}" for index, item in items[:ITEMS_SHOWN]]
        if len(items) > ITEMS_SHOWN:
            lines.append(f"  and {len(items) - ITEMS_SHOWN} more (--json has all)")
    return lines


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{logs.printable(k)} {n}" for k, n in sorted(reasons.items())) or "none"
