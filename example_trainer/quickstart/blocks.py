"""Blocks of a report: values that ``atroposlib/ui/exported/report.js`` shows as text. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from atroposlib.run_status.heldout import HeldoutSample
from atroposlib.run_status.sources import column
from atroposlib.wire.explore import Curve, Curves
from example_trainer.quickstart.verdict import Row

PROBLEMS_SHOWN = 8
ANSWER_SHOWN = 400  # characters
Block = dict[str, Any]
Point = tuple[float, float]

ANSWERS = (
    "The same held-out problems, which are never trained on, answered by the weights of each "
    "step; below each answer its reward."
)


def block(kind: str, **values: Any) -> Block:
    """A block of a kind that the page knows."""
    return {"kind": kind, **values}


def answers_table(answers: Sequence[Sequence[HeldoutSample]]) -> list[Block]:
    """Answers to held-out problems, a row per problem and a column per check."""
    steps = sorted({sample.step for samples in answers for sample in samples})
    rows: list[list[Any]] = []
    for samples in answers[:PROBLEMS_SHOWN]:
        at = {sample.step: sample for sample in samples}
        shown = [_answer(at[step]) if step in at else "" for step in steps]
        rows.append([_text(samples[0].prompt), *shown, _text(samples[0].expected)])
    if not rows:
        return []
    head = ["problem", *(f"step {step}" for step in steps), "expected"]
    return [
        block("head", text="Before and after"),
        block("text", text=ANSWERS),
        block("files", text="All of them:", names=["samples.jsonl"]),
        block("table", head=head, rows=rows),
    ]


def _text(text: str, note: str = "", tone: str = "") -> dict[str, str]:
    return {"text": text, "note": note, "tone": tone}


def _answer(sample: HeldoutSample) -> dict[str, str]:
    text = sample.completion
    shown = text if len(text) <= ANSWER_SHOWN else f"{text[: ANSWER_SHOWN - 3]}..."
    return _text(shown, f"{sample.reward:.2f}", "good" if sample.right else "dim")


def curve(rows: Sequence[Row], name: str) -> tuple[Point, ...]:
    """Return (step, value) of the rows that have the column."""
    return tuple(
        (float(row.get("step", number)), value)
        for number, row in enumerate(rows, 1)
        for value in column([row], name)
    )


def metric_curves(rows: Sequence[Row]) -> Curves:
    """All numbers of metrics.jsonl."""
    keys = sorted({key for row in rows for key in row} - {"step", "time", "version"})
    series = [
        Curve(key, None, "trainer", [(int(x), y) for x, y in points])
        for key in keys
        if (points := curve(rows, key))
    ]
    return Curves([one.key for one in series], series)


def positive(points: Sequence[Point]) -> list[Point]:
    """Points that a logarithmic axis has."""
    return [(x, y) for x, y in points if y > 0]


def series(label: str, points: Sequence[Point], dots: bool = False) -> Block:
    """Curve; ``dots``: few, separate measurements, without a line in between."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    return {"label": label, "points": finite, "dots": dots}


def chart(title: str, *curves: Block, **axis: Any) -> Block:
    return {"title": title, "series": [one for one in curves if one["points"]], **axis}


def charts(*drawn: Block) -> list[Block]:
    return [one for one in drawn if one["series"]]
