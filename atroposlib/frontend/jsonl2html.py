"""HTML page of scored groups: ``python -m atroposlib.frontend.jsonl2html groups.jsonl``.

Groups of ``process``, and the transcripts of ``evaluate``. Each line is a group:
messages and scores, and optionally named rewards, finish reasons, tokens with masks,
logprobs and versions. Markdown of a model is rendered (paragraphs, code, tables, emphasis); its
HTML, links and images are shown as text.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from atroposlib.frontend.parts import (
    HERE,
    LEGEND,
    Box,
    conversation,
    get_score_class,
    render_page,
    render_part,
    token_spans,
)
from atroposlib.text.lines import encodable
from atroposlib.utils.tokenizers.texts import token_texts
from atroposlib.wire import MASKED
from atroposlib.wire.images import picture_url, pictures_of

__all__ = ["create_html_for_group", "generate_html", "get_score_class", "main"]
logger = logging.getLogger(__name__)

SCRIPT = (HERE / "groups_page.js").read_text(encoding="utf-8")
TOKENS_SHOWN = 100_000  # limit of a page; a token takes about 70 bytes
BINS = 10  # bars of the histogram


class TokenPart(NamedTuple):
    """Tokens of a sample, with a title line."""

    title: str
    html: Markup
    shown: int


class SamplePart(NamedTuple):
    """Sample as the page shows it."""

    number: int
    score: float | None
    named: dict[str, float | None]  # rewards
    finish: str
    trained: int | None
    about: str
    turns: list[Box]
    tokens: TokenPart | None


class GroupPart(NamedTuple):
    """Group as the page shows it; ``spread`` is the standard deviation of its scores."""

    number: int
    item: str
    about: str
    prompt: list[Box]  # messages before the first answer, if common to all samples
    samples: list[SamplePart]
    mean: float
    spread: float
    length: int  # tokens, or characters where there are none


def create_html_for_group(group_data: Mapping[str, Any], index: int) -> str:
    """Group as a ``<details>`` element; an empty group is an empty string."""
    view = group_view(group_data, index)
    return render_part("group", view) if view.samples else ""


# --- views: pure -------------------------------------------------------------------------


def group_view(
    group: Mapping[str, Any], index: int, tokenizer: Any = None, room: int = TOKENS_SHOWN
) -> GroupPart:
    """The view of a line of the file, with at most ``room`` tokens; wrong fields are left out."""
    messages, scores = group.get("messages") or [], group.get("scores") or []
    if len(messages) != len(scores):
        numbers = f"{len(messages)} messages, {len(scores)} scores"
        logger.warning("group %d: %s; the rest is left out", index, numbers)
    n_shared, samples = shared_messages(messages), []
    for g, content in enumerate(messages[: len(scores)]):
        sample = _sample(group, g, content, n_shared, tokenizer, room)
        room -= sample.tokens.shown if sample.tokens else 0
        samples.append(sample)
    known = [s.score for s in samples if s.score is not None]
    mean = statistics.fmean(known) if known else 0.0
    spread = statistics.pstdev(known) if known else 0.0
    rows = [len(row) for row in map(_row_of(group, "tokens"), range(len(samples))) if row]
    about = group.get("metadata") or {}
    facts = [str(about["env"])] if "env" in about else []
    facts += [f"{len(samples)} samples", f"mean {mean:.3g}, spread {spread:.3g}"]
    return GroupPart(
        index,
        str(about.get("item", "")),
        ", ".join([*facts, f"{sum(rows)} tokens"] if rows else facts),
        conversation(messages[0][:n_shared]) if n_shared else [],
        samples,
        mean,
        spread,
        sum(rows) or sum(len(str(content)) for content in messages),
    )


def shared_messages(messages_G: Sequence[Any]) -> int:
    """Number of messages before the first answer that all samples begin with."""
    if not messages_G or not all(isinstance(message, list) for message in messages_G):
        return 0
    first, shortest = messages_G[0], min(map(len, messages_G))
    for place in range(max(0, shortest - 1)):
        role = first[place].get("role") if isinstance(first[place], Mapping) else None
        if role == "assistant" or any(
            message[place] != first[place] for message in messages_G
        ):
            return place
    return max(0, shortest - 1)


def _sample(
    group: Mapping[str, Any], g: int, content: Any, n_shared: int, tokenizer: Any, room: int
) -> SamplePart:
    named = _row_of(group.get("metadata") or {}, "named_rewards")(g)
    masks = _row_of(group, "masks")(g)
    trained = sum(label != MASKED for label in masks) if masks else None
    finish = str(_row_of(group, "finish_reasons")(g) or "")
    facts = [f"{trained} of {len(masks)} tokens trained"] if masks else []
    facts += [f"finish {finish}"] if finish else []
    return SamplePart(
        g,
        _number(_row_of(group, "scores")(g)),
        {str(k): _number(v) for k, v in named.items()} if isinstance(named, dict) else {},
        finish,
        trained,
        ", ".join(facts),
        _images(group, g, content)
        + conversation(content[n_shared:] if isinstance(content, list) else [content]),
        _tokens(group, g, tokenizer, room),
    )


def _images(group: Mapping[str, Any], g: int, content: Any) -> list[Box]:
    """Pictures of row ``g`` whose messages hold none, e.g. decoded tokens."""
    turns = content if isinstance(content, list) else []
    contents = [turn.get("content") for turn in turns if isinstance(turn, Mapping)]
    if any(any(map(picture_url, parts)) for parts in contents if isinstance(parts, list)):
        return []
    urls = pictures_of(group.get("images"), g)
    parts = [{"type": "image_url", "image_url": url} for url in urls]
    return conversation([{"role": "pictures", "content": parts}] if parts else [])


def _tokens(group: Mapping[str, Any], g: int, tokenizer: Any, room: int) -> TokenPart | None:
    """Tokens of row ``g``: the whole first row; of later rows only from the first trained token on."""
    names = ("tokens", "masks", "inference_logprobs", "versions")
    tokens, masks, logprobs, versions = (_row_of(group, name)(g) for name in names)
    if not tokens or not masks or len(masks) != len(tokens):
        return None
    trained = [label != MASKED for label in masks]
    start = trained.index(True) if g > 0 and True in trained else 0
    end = min(len(tokens), start + max(0, room))
    title = f"Tokens: {len(tokens)}, {sum(trained)} of them trained"
    if logprobs is not None and any(trained):
        sampled = [value for value, is_trained in zip(logprobs, trained) if is_trained]
        title += f", mean logprob {statistics.fmean(sampled):.3f}"
    if versions is not None and any(trained):
        held = sorted({value for value, is_trained in zip(versions, trained) if is_trained})
        title += f", policy version {', '.join(map(str, held))}"
    if end < len(tokens):
        title += f" (the last {len(tokens) - end} are left out)"
    if tokenizer is None:
        texts = [f"{token} " for token in tokens[start:end]]
    else:
        texts = token_texts(tokenizer, tokens[start:end])
    cut = [None if row is None else row[start:end] for row in (logprobs, versions)]
    html = token_spans(texts, tokens[start:end], trained[start:end], cut[0], cut[1])
    return TokenPart(title, html, end - start)


def _row_of(fields: Mapping[str, Any], name: str) -> Any:
    """A function from a row to its entry in the list ``name``; None where it has none."""
    values = fields.get(name)
    rows = values if isinstance(values, list) else []
    return lambda g: rows[g] if g < len(rows) else None


def _number(score: Any) -> float | None:
    """Score as a number; any other value of a file is shown as none."""
    known = isinstance(score, (int, float)) and math.isfinite(score)
    return float(score) if known else None


# --- statistics: pure --------------------------------------------------------------------


def figures(groups: Sequence[GroupPart]) -> list[tuple[str, str]]:
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


def reward_rows(groups: Sequence[GroupPart]) -> list[tuple[str, str, str, str]]:
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
    groups, room = [], TOKENS_SHOWN
    for number, group in numbered_groups(source):
        view = group_view(group, number, tokenizer, room)
        room -= sum(sample.tokens.shown for sample in view.samples if sample.tokens)
        groups += [view] if view.samples else []
    samples = [sample for group in groups for sample in group.samples]
    page = render_page(
        HERE / "groups_page.html",
        source.name,
        script=SCRIPT,
        groups=groups,
        figures=figures(groups),
        rewards=reward_rows(groups),
        histogram=histogram([s.score for s in samples if s.score is not None]),
        finishes=sorted({sample.finish for sample in samples if sample.finish}),
        legend=LEGEND if any(sample.tokens for sample in samples) else [],
    )
    target.write_text(encodable(page), encoding="utf-8")
    return str(target)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: input file, and optionally where to write."""
    parser = argparse.ArgumentParser(description="Scored groups (jsonl) as an HTML page.")
    parser.add_argument("input_path")
    parser.add_argument("output_path", nargs="?")
    parser.add_argument("--tokenizer", help="directory: show tokens as text instead of ids")
    args = parser.parse_args(argv)
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
