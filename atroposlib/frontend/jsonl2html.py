"""Page of scored groups: ``python -m atroposlib.frontend.jsonl2html groups.jsonl``.

Groups of ``process``, the transcripts of ``evaluate``, and dumps of other trainers
(:mod:`atroposlib.frontend.dumps`). Each line is a group: messages and scores, and optionally named
rewards, finish reasons, tokens with masks, logprobs and versions.

    line -> group_facts -> overview, figures of all samples
         -> group_replies -> Kept, groups up to a size -> exported_page

The page is that of a run (:mod:`atroposlib.ui.export`). Markdown of a model is shown as paragraphs,
code, tables and emphasis; its HTML, links and images are shown as text.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from atroposlib.frontend.dumps import Dump, read_dump
from atroposlib.frontend.page_groups import (
    ScoredSamples,
    group_facts,
    group_replies,
    messages_of,
)
from atroposlib.text.messages import turns
from atroposlib.ui.export import EXPORT_BYTES, Kept, exported_page

__all__ = ["create_html_for_group", "generate_html", "get_score_class", "main"]
logger = logging.getLogger(__name__)

TOKENS_SHOWN = 400_000  # limit of a page
BINS = 10  # bars of the histogram


def create_html_for_group(group_data: Mapping[str, Any], index: int) -> str:
    """Group as a ``<details>`` element of plain text; an empty group is an empty string.

    :func:`generate_html` writes the page, which has tokens, pictures and filters too.
    """
    samples = group_facts(group_data, index).samples
    items = []
    for g, sample in enumerate(samples):
        reward = "none" if sample.score is None else f"{sample.score:.4g}"
        parts = [f"<h3>Sample {g}: reward {reward}</h3>"]
        for message in messages_of(group_data, g):
            labelled = turns(message) if isinstance(message, Mapping) else [("", message)]
            for label, content in labelled:
                text = content if isinstance(content, str) else json.dumps(content)
                parts.append(f"<p><b>{escape(label)}</b></p><pre>{escape(text)}</pre>")
        items.append(
            f'<div class="item {get_score_class(sample.score)}">{"".join(parts)}</div>'
        )
    title = f'<details class="group"><summary>Group {index}</summary>'
    return f"{title}{''.join(items)}</details>" if items else ""


def get_score_class(score: float | None) -> str:
    """The CSS class of a reward by its sign; no reward looks like zero."""
    if score is not None and score > 0:
        return "reward-positive"
    return "reward-negative" if score is not None and score < 0 else "reward-zero"


# --- statistics: pure --------------------------------------------------------------------


def figures(groups: Sequence[ScoredSamples]) -> list[tuple[str, str]]:
    """Name and value of the figures of a file."""
    samples = [sample for group in groups for sample in group.samples]
    scores = [sample.score for sample in samples if sample.score is not None]
    several = [group for group in groups if len(group.samples) > 1]
    lengths = [sample.trained for sample in samples if sample.trained is not None]
    named = [("groups", str(len(groups))), ("samples", str(len(samples)))]
    if scores:
        named.append(("mean reward", f"{statistics.fmean(scores):.4g}"))
    if several:
        spread = statistics.fmean(group.spread for group in several)
        equal = sum(group.spread == 0 for group in several) / len(several)
        named.append(("mean spread in a group", f"{spread:.4g}"))
        named.append(("groups of equal rewards", f"{equal:.0%}"))
    if lengths:
        middle = f"{statistics.median(lengths):.0f} / {max(lengths)}"
        named.append(("trained tokens, median / largest", middle))
    reasons = Counter(sample.finish for sample in samples if sample.finish)
    named += [(f"finish {name}", f"{n}") for name, n in reasons.most_common(6)]
    return named


def reward_rows(groups: Sequence[ScoredSamples]) -> list[tuple[str, str, str, str]]:
    """Name, mean, standard deviation and range over the samples of each kind of reward."""
    values: dict[str, list[float]] = {}
    for sample in (sample for group in groups for sample in group.samples):
        for name, value in {"reward": sample.score, **sample.named}.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return [
        (
            name,
            f"{statistics.fmean(value):.4g}",
            f"{statistics.pstdev(value):.4g}",
            f"{min(value):.4g} to {max(value):.4g}",
        )
        for name, value in values.items()
    ]


def overview(title: str, groups: Sequence[ScoredSamples]) -> list[dict[str, Any]]:
    """Blocks of the first view: figures, kinds of reward, and their histogram."""
    heading = {"kind": "title", "text": title}
    if not groups:
        return [heading, {"kind": "text", "text": "There is no data to show."}]
    scores = [s.score for group in groups for s in group.samples if s.score is not None]
    return [
        heading,
        {"kind": "cards", "pairs": figures(groups)},
        {"kind": "text", "text": "All samples, with filters", "to": "rollouts"},
        {
            "kind": "table",
            "head": ["score", "mean", "spread", "range"],
            "rows": reward_rows(groups),
        },
        {"kind": "bars", "head": ["reward", "samples"], "rows": histogram(scores)},
    ]


def histogram(scores: Sequence[float]) -> list[tuple[str, int, float]]:
    """Label, number of samples and share of the largest bar: by value, or in equal bins."""
    distinct = sorted(set(scores))
    if len(distinct) <= BINS:
        counted = [(f"{value:.4g}", sum(s == value for s in scores)) for value in distinct]
    else:
        low, width = distinct[0], (distinct[-1] - distinct[0]) / BINS
        bins = Counter(min(BINS - 1, int((score - low) / width)) for score in scores)
        edges = [f"{low + i * width:.3g} to {low + (i + 1) * width:.3g}" for i in range(BINS)]
        counted = [(edge, bins[i]) for i, edge in enumerate(edges)]
    most = max((n for _, n in counted), default=1)
    return [(label, n, n / most) for label, n in counted]


# --- files -------------------------------------------------------------------------------


def numbered_groups(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number, from 0 on, and group of each line; logs a warning for lines without a group."""
    with source.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                group = json.loads(line)
            except json.JSONDecodeError as error:
                logger.warning("%s line %d is not JSON: %s", source, number + 1, error)
                continue
            if not isinstance(group, dict) or "messages" not in group or "scores" not in group:
                logger.warning("%s line %d has no messages or scores", source, number + 1)
                continue
            yield number, group


def generate_html(
    input_path: str, output_path: str | None = None, tokenizer: Any = None
) -> str:
    """Write the page of a jsonl file of groups next to it and return its path.

    With a ``tokenizer`` tokens are shown as text, else as ids.

    Raises FileNotFoundError: ``input_path`` does not exist.
    """
    source = Path(input_path)
    target = Path(output_path) if output_path else source.with_suffix(".html")
    Path(target).write_bytes(exported_page(page_data(source, tokenizer)))
    return str(target)


def page_data(
    source: Path, tokenizer: Any = None, max_bytes: int = EXPORT_BYTES
) -> dict[str, Any]:
    """The argument of ``exported_page`` for a file of groups, or a dump of another trainer."""
    dump = read_dump(source)
    if dump is None:
        return groups_page(source, numbered_groups(source), tokenizer, (), max_bytes)
    return dump_page(source, dump, tokenizer, max_bytes)


def dump_page(
    source: Path, dump: Dump, tokenizer: Any = None, max_bytes: int = EXPORT_BYTES
) -> dict[str, Any]:
    """The argument of ``exported_page`` for a dump."""
    notes = [f"Format: {dump.format}."]
    if dump.missing:
        notes.append(f"Not in this dump: {', '.join(dump.missing)}.")
    return groups_page(source, enumerate(dump.groups), tokenizer, notes, max_bytes)


def groups_page(
    source: Path,
    numbered: Iterable[tuple[int, Mapping[str, Any]]],
    tokenizer: Any,
    notes: Sequence[str],
    max_bytes: int,
) -> dict[str, Any]:
    """The argument of ``exported_page`` for groups with their numbers, and notes above them."""
    kept, room, groups = Kept(max_bytes), TOKENS_SHOWN, []
    for number, group in numbered:
        facts = group_facts(group, number)
        if not facts.samples:
            continue
        groups.append(facts)
        if kept.full:
            continue
        rows, replies, shown = group_replies(group, number, facts, tokenizer, room)
        room -= shown
        for row in rows if kept.add(replies) else ():
            kept.append(row)
    of = sum(len(group.samples) for group in groups)
    run = {"run_id": source.name, "path": str(source.resolve())}
    kept.put({"runs": {"runs": [run]}})
    title, *blocks = overview(source.name, groups)
    lines = [{"kind": "text", "text": note} for note in notes]
    blocks = [title, *lines, *blocks]
    return kept.page_data(str(of), "cut the file", blocks=blocks, views=["", "rollouts"])


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: input file, and optionally where to write."""
    parser = argparse.ArgumentParser(description="Scored groups (jsonl) as an HTML page.")
    for path in ("input_path", "output_path"):  # by place, or by flag as in the original
        flag, dashed = f"--{path}", f"--{path.replace('_', '-')}"
        parser.add_argument(path, nargs="?", default=argparse.SUPPRESS)
        parser.add_argument(flag, dashed, dest=path, metavar="PATH", help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", help="directory: show tokens as text instead of ids")
    args = parser.parse_args(argv)
    if args.input_path is None:
        parser.error("input_path is missing: a file of scored groups")
    tokenizer = None
    if args.tokenizer:
        from atroposlib.utils.tokenizers.loading import load_tokenizer_named

        tokenizer = load_tokenizer_named(args.tokenizer)
    try:
        print(generate_html(args.input_path, args.output_path, tokenizer))
    except FileNotFoundError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
