"""Whole runs, driven by code: API, inference server, environment and trainer as processes.

The quickstart's plan and command lines, with some flags changed; results are read back from
the files that the processes write.

    python benchmarks/wholerun.py --model tiny --seeds 0,1,2     the recipe now against BEFORE
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from atroposlib.processes import (
    Children,
    Interrupted,
    ProcessSpec,
    RunFailed,
    StopOnExit,
    StopRequest,
    Supervisor,
    free_port,
)
from atroposlib.processes.supervisor import RestartRule
from atroposlib.quickstart import models, preflight
from atroposlib.quickstart.commands import processes, thread_env
from atroposlib.quickstart.recipes import (
    RECIPES,
    Options,
    QuickstartPlan,
    Recipe,
    ServingEngine,
    dtype_for,
)
from atroposlib.quickstart.verdict import judge, time_spent
from atroposlib.run_status.heldout import Check, Heldout
from atroposlib.trackers.jsonl import read_steps
from atroposlib.utils.tokenizers.loading import cache_dir

REPO = Path(__file__).resolve().parents[1]
LAST_CHECK_TIMEOUT_S = 180.0
# What a recipe was when this comparison was made; checks ran at every step, processes in turn.
BEFORE: dict[str, dict[str, Any]] = {
    "tiny": {
        "steps": 40,
        "groups_per_step": 32,
        "group_size": 16,
        "learning_rate": 4e-3,
        "lr_decay_ratio": 0.0,
    },
    "smollm2": {"steps": 30},
}

Flags = Mapping[str, object]


@dataclass(frozen=True)
class Setup:
    """Settings of a run. ``trainer`` and ``environment`` map flags to values the recipe lacks.

    Example: Setup(out, COPY, "tiny", seed=0, trainer={"--loss": "grpo"})
    """

    out: Path
    recipe: Recipe
    model: str  # tiny, smollm2 or a directory
    seed: int
    trainer: Flags = field(default_factory=dict)
    environment: Flags = field(default_factory=dict)
    ranks: int = 1  # trainer processes, under torchrun
    cores: int = 1  # cores that the processes may use
    dtype: str = "float32"
    early: tuple[str, ...] = ()  # processes that start with the servers


@dataclass(frozen=True)
class Outcome:
    """Results of a run that went to its end."""

    steps: list[dict[str, Any]]  # lines of metrics.jsonl
    checks: list[Check]  # on held-out tasks, by the environment
    seconds: float  # time from the first process to the end of the trainer
    spent: dict[str, float] = field(default_factory=dict)  # seconds by phase


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
        started, started_at = time.monotonic(), time.time()
        parts.start_servers(early=setup.early)
        parts.start_workers(setup.early)
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
        ended_s = time.monotonic() - started
    steps = read_steps(plan.metrics_path)
    spent = time_spent(steps, started_at, seconds, ended_s)
    return Outcome(steps, heldout.read(), seconds, spent)


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
        dtype=setup.dtype,
        api_port=free_port(),
        server_port=free_port(),
    )


def changed_settings(spec: ProcessSpec, setup: Setup) -> ProcessSpec:
    if spec.name == "environment":
        return replace(spec, argv=with_flags(spec.argv, setup.environment))
    if spec.name != "trainer":
        return spec
    argv = with_flags(spec.argv, setup.trainer)
    if setup.ranks == 1:
        return replace(spec, argv=argv)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    torchrun += ("--nproc-per-node", str(setup.ranks))
    threads = thread_env(max(1, setup.cores // setup.ranks))
    return replace(spec, argv=torchrun + argv[1:], env={**spec.env, **threads})


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


def run_once(setup: Setup, stop: StopRequest, bound_s: float = 3600.0) -> Outcome:
    """The outcome that is kept in ``setup.out``, or that of :func:`run`, kept there."""
    path = setup.out / "result.json"
    if not path.is_file():
        shutil.rmtree(setup.out, ignore_errors=True)  # remains of a run that was cut off
        made = asdict(run(setup, stop, bound_s))
        path.write_text(json.dumps(made, default=str), encoding="utf-8")
    document = json.loads(path.read_text(encoding="utf-8"))
    checks = [
        Check(**{**check, "directory": Path(check["directory"])})
        for check in document["checks"]
    ]
    return Outcome(document["steps"], checks, document["seconds"])


# --- studies of several runs ---------------------------------------------------------------


def study(runs: Callable[[StopRequest], int]) -> int:
    """Return the status of ``runs``, which does the runs; a signal ends every process."""
    stop = StopRequest()
    stop.listen()
    try:
        return runs(stop)
    except RunFailed as failure:
        print(f"{failure.tail}\n{failure.line}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        print(f"{interrupted}; runs that ended are kept")
        return 128 + interrupted.signal_number


def numbers(text: str) -> list[int]:
    """``0,1,4`` of a command line."""
    return [int(number) for number in text.split(",")]


def plot(
    paths: Sequence[Path], draw: Callable[[Any], None], columns: int, width: float
) -> None:
    """Write the axes that ``draw`` fills as SVG to each path; a hint without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: pip install 'atropos-rl[bench]' for matplotlib, and run this again")
        return
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "atropos"  # the same results: the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, columns, figsize=(width, 3.6), layout="constrained")
    draw(axes)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


# --- the quickstart before and now ----------------------------------------------------------


def compare(model: str, seed: int, cores: int, out: Path, stop: StopRequest) -> None:
    """Run the recipe as it was and as it is; print both and the ratio of their seconds."""
    recipe, took = RECIPES[model], []
    options = Options(model, ServingEngine.LOCAL, seed, out)
    dtype = dtype_for(options, recipe, preflight.cpu_info("flags").split())
    common: dict[str, Any] = {"model": model, "seed": seed, "cores": cores, "dtype": dtype}
    before = replace(recipe, **BEFORE[model])
    for setup in (
        Setup(out / f"before-{seed}", before, trainer={"--check-every": 1}, **common),
        Setup(out / f"now-{seed}", recipe, early=("trainer", "environment"), **common),
    ):
        outcome = run(setup, stop)
        version = outcome.steps[-1]["version"]
        seconds = {"seconds": outcome.seconds, "cores": cores}
        line = judge(setup.recipe, outcome.steps, server_version=version, **seconds).line()
        print(f"{setup.out.name}: {line}", flush=True)
        print(", ".join(f"{name} {s:.1f} s" for name, s in outcome.spent.items()), flush=True)
        took.append(outcome.seconds)
    print(f"seed {seed}: now takes {took[1] / took[0]:.2f} of the time before", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare a recipe with what it was.")
    parser.add_argument("--model", choices=BEFORE, default="tiny")
    parser.add_argument("--seeds", type=numbers, default=[0])
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()

    def runs(stop: StopRequest) -> int:
        with tempfile.TemporaryDirectory() as scratch:
            for seed in options.seeds:
                compare(options.model, seed, options.cores, Path(scratch), stop)
        return 0

    return study(runs)


if __name__ == "__main__":
    sys.exit(main())
