"""Whole runs, driven by code: API, inference server, environment and trainer as processes.

The quickstart's plan, with some settings of the trainer changed; results are read back from the
files that the processes write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from atroposlib.processes import Children, StopOnExit, StopRequest
from atroposlib.processes.supervisor import RestartRule
from atroposlib.run_status.view import PlainView
from atroposlib.trackers.jsonl import read_steps
from atroposlib.utils.tokenizers.loading import cache_dir
from example_trainer.quickstart import preflight
from example_trainer.quickstart.launch import QuickstartRun
from example_trainer.quickstart.recipes import Options, QuickstartPlan, Recipe, ServingEngine

REPO = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Setup:
    """Settings of a run. ``trainer`` maps settings to values the recipe lacks.

    Example: Setup(out, COPY, "tiny", seed=0, trainer={"loss": "grpo"})
    """

    out: Path
    recipe: Recipe
    model: str  # tiny, smollm2 or a directory
    seed: int
    trainer: Mapping[str, object] = field(default_factory=dict)
    cores: int = 1  # cores that the processes may use


@dataclass(frozen=True)
class Outcome:
    """Results of a run that went to its end."""

    steps: list[dict[str, Any]]  # lines of metrics.jsonl
    seconds: float  # time from the first process to the end of the trainer


def run(
    setup: Setup,
    stop: StopRequest,
    bound_s: float = 3600.0,
    rule: RestartRule | None = None,
) -> Outcome:
    """Run to the end and end every process; by default the end of any process ends the run.

    Raises:
        RunFailed: a process died or ``bound_s`` passed; the message names the log.
        Interrupted: ``stop`` was requested.
    """
    view = PlainView(Console(quiet=True))  # the caller prints the outcome
    with Children(setup.out / "logs", stop) as children:
        start = preflight.prepare(draft(setup), cache_dir(), children, view.waiting)
        processes = QuickstartRun(start, children, stop, view, rule or StopOnExit())
        processes.begin()
        processes.train(bound_s)
        processes.sources.probe.close()
    return Outcome(read_steps(start.metrics_path), processes.trained_s)


def draft(setup: Setup) -> QuickstartPlan:
    """The quickstart of a setup, before its model is provided."""
    changed = tuple((name, str(value)) for name, value in setup.trainer.items())
    options = Options(
        setup.model,
        ServingEngine.LOCAL,
        setup.seed,
        setup.out,
        dtype="float32",
        trainer_settings=changed,
    )
    return replace(preflight.draft(options, setup.recipe, REPO), cores=setup.cores)
