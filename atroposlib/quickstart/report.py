"""HTML report of a run: one file without external resources, all model text escaped.

metrics rows + held-out curve + answers + verdict --> page(...) --> report.html
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from atroposlib.quickstart.charts import Point, Series, line_chart
from atroposlib.quickstart.heldout import HeldoutSample
from atroposlib.quickstart.recipes import QuickstartPlan
from atroposlib.quickstart.verdict import (
    LAST_STEPS,
    MISMATCH_COLUMNS,
    MISMATCH_LIMIT,
    Row,
    RunVerdict,
    column,
    figure,
)

PROBLEMS_SHOWN = 8
LONGEST_ANSWER = 400  # characters of an answer
PHASES = ("wait", "train", "publish", "check")
STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
# No script runs and nothing is loaded, regardless of the text of a completion.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Findings:
    """Contents of a report."""

    title: str
    task: str
    verdict: RunVerdict
    rows: Sequence[Row]  # metrics.jsonl
    heldout: Sequence[tuple[int, float]]  # (step, exact rate)
    heldout_rewards: Sequence[tuple[int, float]]
    answers: Sequence[Sequence[HeldoutSample]]  # per problem, one per check
    settings: Mapping[str, Any]
    run: Path  # its directory
    repeat: str  # the command that repeats it
    notes: Sequence[str] = ()  # restarts, a stop before the end


def page(f: Findings) -> str:
    """Render the whole document. Pure."""
    body = "".join(
        [
            _head(f),
            _section("Before and after", _before_and_after(f.answers)),
            _section("Learning", _learning(f)),
            _section("Next", _next(f.run)),
            _section("Is it sound?", _soundness(f)),
            _section("Where the time went", _time_split(f.rows)),
            _section("Repeat it", _repeat(f)),
            _section("What this shows, and what it does not", _honesty(f)),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(f.title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>"
    )


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>" if content else ""


def _head(f: Findings) -> str:
    v = f.verdict
    cards = [
        ("exact answers", change(v.exact_first, v.exact_last)),
        ("reward", change(v.reward_first, v.reward_last)),
        ("held out, exact", change(f.heldout[0][1], f.heldout[-1][1]) if f.heldout else "–"),
        ("training", f"{v.seconds:.0f} s"),
        ("steps", str(v.steps)),
        ("cores", str(v.cores)),
    ]
    tiles = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in cards
    )
    mark = "good" if v.learned else "bad"
    word = "It learned." if v.learned else "It fell short: " + "; ".join(v.shortcomings) + "."
    notes = "".join(f"<li>{escape(note)}</li>" for note in f.notes)
    return (
        f"<header><h1>{escape(f.title)}</h1><p>{escape(f.task)}</p>"
        f'<p class="{mark}">{escape(word)}</p><div class="cards">{tiles}</div>'
        + (f"<ul>{notes}</ul>" if notes else "")
        + "</header>"
    )


def change(first: float | None, last: float | None) -> str:
    """Format two figures on one line, with spaces that are not broken."""
    return f"{figure(first)}\u00a0→\u00a0{figure(last)}"


def curve(rows: Sequence[Row], name: str) -> tuple[Point, ...]:
    """Return (step, value) of the rows that have the column."""
    return tuple(
        (float(row.get("step", number)), value)
        for number, row in enumerate(rows, 1)
        for value in column([row], name)
    )


def _learning(f: Findings) -> str:
    exact = _figure(
        "Rate of exact answers",
        Series("exact, training problems", curve(f.rows, "env/exact")),
        Series("exact, held-out problems", tuple(f.heldout), "b", dots=True),
        y_range=(0.0, 1.0),
    )
    return exact + _figure(
        "Mean reward",
        Series("reward, training problems", curve(f.rows, "reward_mean")),
        Series("reward, held-out problems", tuple(f.heldout_rewards), "b", dots=True),
    )


def _soundness(f: Findings) -> str:
    limit = ((1.0, MISMATCH_LIMIT), (float(max(2, len(f.rows))), MISMATCH_LIMIT))
    words = (
        "<p>The server samples, the trainer learns: both must agree on the probability of every "
        "token, or the gradient is about another model. The largest difference in a step, in "
        "nats, on a logarithmic scale:</p>"
    )
    mismatch = _figure(
        "Largest logprob difference, server against trainer",
        Series("of the batch", curve(f.rows, MISMATCH_COLUMNS[0])),
        Series("after publishing", curve(f.rows, MISMATCH_COLUMNS[1]), "b"),
        Series("limit", limit, "goal"),
        log=True,
    )
    stale = _figure(
        "Versions between sampling and training",
        Series("mean", curve(f.rows, "staleness_mean")),
        Series("largest", curve(f.rows, "staleness_max"), "b"),
        y_range=(0.0, max([1.0, *column(f.rows, "staleness_max")])),
    )
    return words + mismatch + stale


def _figure(caption: str, *series: Series, **axis: Any) -> str:
    chart = line_chart(series, title=caption, **axis)
    if not chart:
        return ""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart}</figure>"


def _before_and_after(answers: Sequence[Sequence[HeldoutSample]]) -> str:
    """Draw a table: a row per held-out problem, and a column per check of the same problems."""
    steps = sorted({sample.step for samples in answers for sample in samples})
    if not steps:
        return ""
    heads = "".join(f"<th>step {step}</th>" for step in steps)
    rows = ""
    for samples in answers[:PROBLEMS_SHOWN]:
        at = {sample.step: sample for sample in samples}
        cells = "".join(_answer(at.get(step)) for step in steps)
        problem, expected = map(escape, (samples[0].prompt, samples[0].expected))
        rows += f"<tr><th><pre>{problem}</pre></th>{cells}<td><pre>{expected}</pre></td></tr>"
    return (
        "<p>The same held-out problems, which are never trained on, answered by the weights of "
        "each step; below each answer its reward. All of them are in "
        '<a href="samples.jsonl">samples.jsonl</a>.</p><div class="scroll">'
        f'<table class="answers"><tr><th>problem</th>{heads}<th>expected</th></tr>{rows}'
        "</table></div>"
    )


def _answer(sample: HeldoutSample | None) -> str:
    if sample is None:
        return "<td></td>"
    text = sample.completion
    text = text if len(text) <= LONGEST_ANSWER else text[:LONGEST_ANSWER] + " …"
    return (
        f"<td><pre>{escape(text)}</pre>"
        f'<span class="{"good" if sample.right else "soft"}">{sample.reward:.2f}</span></td>'
    )


def next_steps(run: Path) -> tuple[tuple[str, str], ...]:
    """Return three things to do after a run, each with its command or page."""
    return (
        ("talk to the trained model", f"atropos chat {shlex.quote(str(run / 'model'))}"),
        ("write your own environment", "atropos env new NAME"),
        ("read the guide", "docs/environments.md"),
    )


def _next(run: Path) -> str:
    steps = "".join(
        f"<li>{escape(what)}: <code>{escape(how)}</code></li>" for what, how in next_steps(run)
    )
    return f"<ol>{steps}</ol>"


def _repeat(f: Findings) -> str:
    files = ("metrics.jsonl", "samples.jsonl", "model/", "commands.txt", "logs/")
    links = ", ".join(f'<a href="{name}">{name}</a>' for name in files)
    return (
        f'<div class="scroll"><pre class="command">{escape(f.repeat)}</pre></div>'
        f"<p>Beside this page: {links}.</p>{_table(f.settings.items())}"
    )


def _time_split(rows: Sequence[Row]) -> str:
    sums = {phase: sum(column(rows, f"seconds_{phase}")) for phase in PHASES}
    total = sum(sums.values())
    if total <= 0:
        return ""
    bars = "".join(
        f'<tr><td>{phase}</td><td>{spent:.1f} s</td><td class="wide"><div class="bar" '
        f'style="width:{100 * spent / total:.1f}%"></div></td></tr>'
        for phase, spent in sums.items()
    )
    return (
        "<p>Seconds of the trainer, all steps together. While it waits, environment and server "
        f"generate the next batch: the two take turns on the cores.</p><table>{bars}</table>"
    )


def _table(items: Any) -> str:
    rows = "".join(
        f"<tr><th>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"
        for name, value in items
    )
    return f'<div class="scroll"><table class="settings">{rows}</table></div>'


def _honesty(f: Findings) -> str:
    return (
        f"<p>“First” is the mean of the first step, all of it sampled from the weights the run "
        f"began with; “last” is the mean of the last {LAST_STEPS} steps. Both count sampled "
        "answers at temperature 1, not the best of several.</p>"
        "<p>The task is small and its problems come from one narrow family, one seed, one run. "
        "The held-out problems were never trained on, but they are of the same family: the "
        "curve shows that the loop learns by real gradient steps through real HTTP, not that "
        "the model became better at anything else.</p>"
    )


def write_report(f: Findings, plan: QuickstartPlan) -> Path:
    """Write report.html and summary.json into the run's directory; return the report."""
    out = plan.options.out
    summary = {
        **asdict(f.verdict),
        "learned": f.verdict.learned,
        "line": f.verdict.line(),
        "heldout": [list(point) for point in f.heldout],
        "settings": dict(f.settings),
        "notes": list(f.notes),
    }
    for name, text in (
        ("summary.json", json.dumps(summary, indent=2, default=str) + "\n"),
        ("report.html", page(f)),
    ):
        partial = out / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(out / name)
    return out / "report.html"
