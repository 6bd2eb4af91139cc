"""HTML report of a run: a file without external resources, all model text escaped.

metrics rows + held-out curve + answers + verdict --> page(...) --> report.html
"""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from atroposlib import __version__
from atroposlib.frontend.parts import render_page
from atroposlib.run_status.heldout import HeldoutSample
from atroposlib.run_status.sources import column
from example_trainer.quickstart.charts import Point, Series, line_chart
from example_trainer.quickstart.preflight import cpu_info
from example_trainer.quickstart.recipes import Options, QuickstartPlan
from example_trainer.quickstart.verdict import (
    LAST_STEPS,
    MISMATCH_COLUMNS,
    Row,
    RunVerdict,
    figure,
)

GIT_TIMEOUT_S = 5.0
PROBLEMS_SHOWN = 8
TEMPLATE = Path(__file__).with_name("report_page.html")
Figure = tuple[str, str]  # caption and drawing; an empty figure is left out


@dataclass(frozen=True)
class Findings:
    """Contents of a report."""

    title: str
    task: str
    verdict: RunVerdict
    rows: Sequence[Row]  # metrics.jsonl
    heldout: Sequence[tuple[int, float]]  # (step, exact rate)
    heldout_rewards: Sequence[tuple[int, float]]
    answers: Sequence[Sequence[HeldoutSample]]  # per problem, an answer per check
    settings: Mapping[str, Any]
    run: Path  # its directory
    guide: Path  # guide for authors of environments
    repeat: str  # the command that repeats it
    spent: Mapping[str, float]  # seconds by phase
    notes: Sequence[str] = ()  # restarts, a stop before the end


def page(f: Findings) -> str:
    """Render the whole document; every text in it is escaped. Pure."""
    return render_page(
        TEMPLATE,
        f.title,
        f=f,
        cards=_cards(f),
        steps=sorted({sample.step for samples in f.answers for sample in samples}),
        problems=[(a[0], {s.step: s for s in a}) for a in f.answers[:PROBLEMS_SHOWN]],
        learning=_learning(f),
        soundness=_soundness(f),
        next_steps=next_steps(f),
        last_steps=LAST_STEPS,
    )


def _cards(f: Findings) -> list[tuple[str, str]]:
    v = f.verdict
    measure, points = ("exact", f.heldout) if f.heldout else ("reward", f.heldout_rewards)
    heldout: list[float | None] = [rate for _, rate in points] or [None]
    return [
        ("exact answers", change(v.exact_first, v.exact_last)),
        ("reward", change(v.reward_first, v.reward_last)),
        (f"held out, {measure}", change(heldout[0], heldout[-1])),
        ("training", f"{v.seconds:.0f} s"),
        ("steps", str(v.steps)),
        ("cores", str(v.cores)),
    ]


def change(first: float | None, last: float | None) -> str:
    """Format two figures on a line, with spaces that are not broken."""
    return f"{figure(first)}\u00a0→\u00a0{figure(last)}"


def curve(rows: Sequence[Row], name: str) -> tuple[Point, ...]:
    """Return (step, value) of the rows that have the column."""
    return tuple(
        (float(row.get("step", number)), value)
        for number, row in enumerate(rows, 1)
        for value in column([row], name)
    )


def _learning(f: Findings) -> list[Figure]:
    return [
        _figure(
            "Rate of exact answers",
            Series("exact, training problems", curve(f.rows, "env/exact")),
            Series("exact, held-out problems", tuple(f.heldout), "b", dots=True),
            y_range=(0.0, 1.0),
        ),
        _figure(
            "Mean reward",
            Series("reward, training problems", curve(f.rows, "reward_mean")),
            Series("reward, held-out problems", tuple(f.heldout_rewards), "b", dots=True),
        ),
    ]


def _soundness(f: Findings) -> list[Figure]:
    mismatch = _figure(
        "Logprobs of server and trainer, mean distance in nats per token",
        Series("of the batch", curve(f.rows, MISMATCH_COLUMNS[0])),
        Series("after publishing", curve(f.rows, MISMATCH_COLUMNS[1]), "b", dots=True),
        log=True,
    )
    stale = _figure(
        "Versions between sampling and training",
        Series("mean", curve(f.rows, "staleness_mean")),
        Series("largest", curve(f.rows, "staleness_max"), "b"),
        y_range=(0.0, max([1.0, *column(f.rows, "staleness_max")])),
    )
    return [mismatch, stale]


def _figure(caption: str, *series: Series, **axis: Any) -> Figure:
    return caption, line_chart(series, title=caption, **axis)  # escaped by line_chart


def next_steps(f: Findings) -> list[tuple[str, str]]:
    """Return what to do after a run, each with its command or page that exists."""
    steps = [
        ("talk to the trained model", f"atropos chat {shlex.quote(str(f.run / 'model'))}"),
        ("look at every rollout", f"atropos view {shlex.quote(str(f.run))}"),
        ("write your own environment", "atropos env new NAME"),
    ]
    return [*steps, ("read the guide", str(f.guide))] if f.guide.is_file() else steps


def write_report(f: Findings, plan: QuickstartPlan) -> Path:
    """Write report.html and summary.json into the run's directory; return the report."""
    out = plan.options.out
    summary = {
        **asdict(f.verdict),
        "learned": f.verdict.learned,
        "line": f.verdict.line(),
        "heldout": [list(point) for point in f.heldout],
        "heldout_rewards": [list(point) for point in f.heldout_rewards],
        "settings": dict(f.settings),
        "seconds_by_phase": dict(f.spent),
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


def provenance(repo: Path) -> dict[str, str]:
    """Return what the settings of a run do not name, and its result depends on."""
    packages = (f"{name} {version(name)}" for name in ("torch", "transformers"))
    return {
        "packages": ", ".join([f"atroposlib {__version__}", *packages]),
        "commit": commit(repo),
        # Linux names it in /proc/cpuinfo only.
        "processor": cpu_info("model name") or platform.processor() or platform.machine(),
    }


def commit(repo: Path) -> str:
    """Return the commit of a checkout, with ``-dirty`` if files differ from it."""
    if not (repo / ".git").exists():  # an installed package, perhaps inside a foreign checkout
        return "none: not a checkout"
    argv = ("git", "-C", str(repo), "describe", "--always", "--dirty", "--abbrev=12")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown: git did not answer"
    return done.stdout.strip() or "unknown"


def repeat_command(options: Options) -> str:
    """Return the command that starts the same run again, in a new directory."""
    words = ["python", "-m", "atroposlib.quickstart", "--model", options.model]
    words += ["--engine", options.engine.value, "--seed", str(options.seed)]
    words += ["--steps", str(options.steps)] if options.steps is not None else []
    words += ["--groups", str(options.groups)] if options.groups is not None else []
    words += ["--environment", str(options.environment)] if options.environment else []
    words += options.passed_on("env")
    words += [f"--trainer.{name}={value}" for name, value in options.trainer_settings]
    return shlex.join(words)
