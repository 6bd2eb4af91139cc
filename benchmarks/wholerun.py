"""Whole runs, driven by code: API, inference server, environment and trainer as processes.

The quickstart's plan and command lines, with some flags of the trainer changed; results are read
back from the files that the processes write.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atroposlib.processes import (
    Children,
    ProcessSpec,
    StopOnExit,
    StopRequest,
    Supervisor,
    free_port,
)
from atroposlib.processes.supervisor import RestartRule
from atroposlib.quickstart import models
from atroposlib.quickstart.commands import processes
from atroposlib.quickstart.recipes import (
    Options,
    QuickstartPlan,
    Recipe,
    ServingEngine,
)
from atroposlib.run_status.heldout import Heldout
from atroposlib.trackers.jsonl import read_steps
from atroposlib.utils.tokenizers.loading import cache_dir

REPO = Path(__file__).resolve().parents[1]
LAST_CHECK_TIMEOUT_S = 180.0

Flags = Mapping[str, object]


@dataclass(frozen=True)
class Setup:
    """Settings of a run. ``trainer`` maps flags to values the recipe lacks.

    Example: Setup(out, COPY, "tiny", seed=0, trainer={"--loss": "grpo"})
    """

    out: Path
    recipe: Recipe
    model: str  # tiny, smollm2 or a directory
    seed: int
    trainer: Flags = field(default_factory=dict)
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
    with Children(setup.out / "logs", stop) as children:
        plan = plan_of(setup, children)
        specs = [changed_settings(spec, setup) for spec in processes(plan)]
        ends = {"trainer", "environment"}
        parts = Supervisor(
            specs,
            children,
            stop,
            rule or StopOnExit(),
            may_end=lambda: ends,
            print_line=lambda line: None,  # the caller prints the outcome
        )
        started = time.monotonic()
        parts.start_servers()
        parts.start_workers()
        parts.watch(lambda: parts.has_completed("trainer"), what="trainer", within_s=bound_s)
        seconds = time.monotonic() - started
        heldout = Heldout(plan.heldout_dir)
        parts.watch(
            lambda: (
                _has_checked(heldout, setup.recipe.steps) or parts.has_completed("environment")
            ),
            what="the last check of the environment",
            within_s=min(max(0.0, bound_s - seconds), LAST_CHECK_TIMEOUT_S),
        )
    return Outcome(read_steps(plan.metrics_path), seconds)


def _has_checked(heldout: Heldout, step: int) -> bool:
    checks = heldout.read()
    return bool(checks) and checks[-1].step >= step


def plan_of(setup: Setup, children: Children) -> QuickstartPlan:
    model_dir = models.provide(
        setup.model,
        seed=setup.seed,
        out=setup.out,
        cache=cache_dir(),
        children=children,
    )
    return QuickstartPlan(
        options=Options(setup.model, ServingEngine.LOCAL, setup.seed, setup.out),
        recipe=setup.recipe,
        model_dir=model_dir,
        serve_dir=model_dir,
        repo=REPO,
        cores=setup.cores,
        dtype="float32",
        api_port=free_port(),
        server_port=free_port(),
    )


def changed_settings(spec: ProcessSpec, setup: Setup) -> ProcessSpec:
    if spec.name != "trainer":
        return spec
    return replace(spec, argv=with_flags(spec.argv, setup.trainer))


def with_flags(argv: tuple[str, ...], flags: Flags) -> tuple[str, ...]:
    """The command with these values, in place of present values or at its end.

    None is a flag without a value.
    """
    words = list(argv)
    for flag, value in flags.items():
        if flag in words:
            words[words.index(flag) + 1] = str(value)
        else:
            words += [flag] if value is None else [flag, str(value)]
    return tuple(words)
