"""atropos eval diff A B: paired comparison of two evaluations over the same items.

    atropos eval diff evals/before evals/after
    atropos eval diff evals/before evals/after --metric exact --json

A and B are folders of evaluate (--env.data_dir_to_save_evals), or files of scored groups.
The interval is a paired bootstrap over the items. Two runs: ``atropos run diff A B``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.envs.runtime.evaluation import TRANSCRIPTS, transcripts
from atroposlib.errors import ConfigError
from atroposlib.frontend.jsonl2html import numbered_groups
from atroposlib.frontend.page_groups import group_facts
from atroposlib.text.lines import json_lines
from atroposlib.utils.command.parser import CommandParser
from atroposlib.workbench.paired import ItemResult, comparison_lines, comparison_of

SCORES = ("reward", "score")  # names of the score in a sample


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
