"""Report of a run: the page of the run in a file, with the findings as blocks of the overview.

metrics rows + held-out curve + answers + verdict --> blocks --> exported_page --> report.html
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
from atroposlib.run_status.heldout import HeldoutSample
from atroposlib.run_status.sources import column
from atroposlib.ui.export import Kept, exported_page
from atroposlib.utils.io import whole_file
from example_trainer.quickstart.blocks import (
    Block,
    answers_table,
    block,
    chart,
    charts,
    curve,
    metric_curves,
    positive,
    series,
)
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
# Files of the run that the page links to.
FILES = ("metrics.jsonl", "samples.jsonl", "model/", "commands.txt", "logs/")

# Settings of a run that the page shows, in words. summary.json has all, by their keys.
LABELS = {
    "model": "model",
    "env_script": "environment",
    "reward": "reward",
    "steps": "steps",
    "groups_per_step": "groups of a step",
    "group_size": "answers of a group",
    "learning_rate": "learning rate",
    "lr_decay_ratio": "share of the steps in which the learning rate falls to 0",
    "adam_beta2": "beta2 of Adam",
    "clip_eps_high": "upper clip of the ratio",
    "entropy_coef": "weight of the entropy bonus",
    "ppo_epochs": "passes over a batch",
    "seq_len": "tokens of prompt and answer together, at most",
    "microbatch_tokens": "tokens of a forward pass of the trainer",
    "ensure_scores_are_not_same": "groups of equal rewards are left out",
    "steps_per_check": "steps between checks on held-out problems",
    "seed": "seed",
    "engine": "inference server",
    "dtype": "number format of matrix products",
    "cores": "cores",
    "processor": "processor",
    "python": "Python",
    "packages": "packages",
    "commit": "commit",
}
SOUND = (
    "The server samples, the trainer learns: both must agree on the probability of every token, "
    "or the gradient is about another model. The largest difference in a step, in nats, on a "
    "logarithmic scale:"
)
SPENT = (
    "Seconds of the whole run. While the trainer waits, environment and server generate the next "
    "batch: the two take turns on the cores."
)
LIMITS = (
    "“First” is the mean of the first step, all of it sampled from the weights the run began "
    f"with; “last” is the mean of the last {LAST_STEPS} steps. Both count sampled answers at "
    "temperature 1, not the best of several.",
    "The task is small and its problems come from one narrow family, one seed, one run. The "
    "held-out problems were never trained on, but they are of the same family: the curve shows "
    "that the loop learns by real gradient steps through real HTTP, not that the model became "
    "better at anything else.",
)


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


def page(f: Findings) -> bytes:
    """The page of a run with the report as its overview, and all curves. Pure."""
    kept = Kept()
    run = {"run_id": f.run.name, "path": str(f.run)}
    kept.put({"curves": metric_curves(f.rows), "runs": {"runs": [run]}})
    data = kept.page_data("", "", blocks=blocks(f), views=["", "curves"])
    return exported_page({**data, "note": f.verdict.line()})


def blocks(f: Findings) -> list[Block]:
    """The report as blocks of the page: words, figures, answers, curves."""
    learned = {"text": "It learned.", "tone": "good"}
    short = f"It fell short: {'; '.join(f.verdict.shortcomings)}."
    steps = next_steps(f)
    return [
        block("title", text=f.title),
        block("text", text=f.task),
        block("text", **(learned if f.verdict.learned else {"text": short, "tone": "bad"})),
        block("cards", pairs=_cards(f)),
        *([block("list", items=[[note] for note in f.notes])] if f.notes else []),
        *answers_table(f.answers),
        block("head", text="Learning"),
        block("charts", charts=_learning(f)),
        block("head", text="Next"),
        block("list", items=[[what, how] for what, how in steps]),
        block("head", text="Is it sound?"),
        block("text", text=SOUND),
        block("charts", charts=_soundness(f)),
        *_time_spent(f),
        block("head", text="Repeat it"),
        block("code", text=f.repeat),
        block("files", text="Beside this page:", names=FILES),
        block("table", head=["setting", "value"], rows=_settings(f)),
        block("head", text="What this shows, and what it does not"),
        *(block("text", text=text) for text in LIMITS),
    ]


def _settings(f: Findings) -> list[list[str]]:
    """Known settings by label, then those of the command line by their flags."""
    known = [[LABELS[name], _value(f.settings[name])] for name in LABELS if name in f.settings]
    given = [[f"--{name}", str(value)] for name, value in f.settings.items() if "." in name]
    return known + given


def _value(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _time_spent(f: Findings) -> list[Block]:
    whole = sum(f.spent.values())
    if not whole:
        return []
    rows = [[phase, f"{seconds:.1f} s", seconds / whole] for phase, seconds in f.spent.items()]
    return [
        block("head", text="Where the time went"),
        block("text", text=SPENT),
        block("bars", head=["phase", "seconds"], rows=rows),
    ]


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


def _learning(f: Findings) -> list[Block]:
    return charts(
        chart(
            "Rate of exact answers",
            series("exact, training problems", curve(f.rows, "env/exact")),
            series("exact, held-out problems", f.heldout, dots=True),
            range=[0, 1],
        ),
        chart(
            "Mean reward",
            series("reward, training problems", curve(f.rows, "reward_mean")),
            series("reward, held-out problems", f.heldout_rewards, dots=True),
        ),
    )


def _soundness(f: Findings) -> list[Block]:
    of_batch, published = (curve(f.rows, name) for name in MISMATCH_COLUMNS)
    largest = max([1.0, *column(f.rows, "staleness_max")])
    return charts(
        chart(
            "Logprobs of server and trainer, mean distance in nats per token",
            series("of the batch", positive(of_batch)),
            series("after publishing", positive(published), dots=True),
            log=True,
        ),
        chart(
            "Versions between sampling and training",
            series("mean", curve(f.rows, "staleness_mean")),
            series("largest", curve(f.rows, "staleness_max")),
            range=[0, largest],
        ),
    )


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
    for name, content in (
        ("summary.json", f"{json.dumps(summary, indent=2, default=str)}\n".encode()),
        ("report.html", page(f)),
    ):
        with whole_file(out / name) as draft:
            draft.write_bytes(content)
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
