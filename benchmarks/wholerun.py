"""One whole run, driven by code: API, inference server, environment and trainer as processes.

The quickstart's plan and command lines, with some flags changed; what it made is read back
from the files that the processes themselves write.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from atroposlib.processes import (
    Child,
    Children,
    ProcessSpec,
    RunFailed,
    StopRequest,
    free_port,
)
from atroposlib.quickstart import models
from atroposlib.quickstart.commands import processes, thread_env
from atroposlib.quickstart.heldout import Check, Heldout
from atroposlib.quickstart.plan import Engine, Options, Plan, Recipe
from atroposlib.trackers.jsonl import read_steps

REPO = Path(__file__).resolve().parents[1]
POLL_S = 0.1
LAST_CHECK_WITHIN_S = 180.0

Flags = Mapping[str, object]


@dataclass(frozen=True)
class Setup:
    """What to run. ``trainer`` and ``environment`` map flags to values the recipe lacks.

    Example: Setup(out, COPY, "tiny", seed=0, trainer={"--loss": "grpo"})
    """

    out: Path
    recipe: Recipe
    model: str  # tiny, smollm2 or a directory
    seed: int
    trainer: Flags = field(default_factory=dict)
    environment: Flags = field(default_factory=dict)
    ranks: int = 1  # trainer processes, under torchrun
    cores: int = 1  # that these processes may use


@dataclass(frozen=True)
class Outcome:
    """What came out of a run that went to its end."""

    steps: list[dict[str, Any]]  # lines of metrics.jsonl
    checks: list[Check]  # on held-out tasks, by the environment
    seconds: float  # from the first process to the end of the trainer


def run(setup: Setup, stop: StopRequest, bound_s: float = 3600.0) -> Outcome:
    """Run it to its end and end every process.

    Raises:
        RunFailed: a process died or ``bound_s`` passed; the message names the log.
        Interrupted: ``stop`` was requested.
    """
    with Children(setup.out / "logs", stop) as children:
        plan = _plan(setup, children)
        specs = {spec.name: _changed(spec, setup) for spec in processes(plan)}
        started = time.monotonic()
        deadline = started + bound_s
        with httpx.Client(timeout=1.0, trust_env=False) as probe:
            for name in ("api", "inference"):
                children.start(specs[name])
            children.wait_ready(["api", "inference"], lambda url: _answers(probe, url))
        running = [children.start(specs[name]) for name in ("trainer", "environment")]
        running += [children["api"], children["inference"]]
        _wait_for(children["trainer"], running, stop, deadline)
        seconds = time.monotonic() - started
        heldout = Heldout(plan.heldout_dir)
        last = min(deadline, time.monotonic() + LAST_CHECK_WITHIN_S)
        checked = partial(_checked, heldout, setup.recipe.steps)
        _wait_for(children["environment"], running, stop, last, or_until=checked)
    return Outcome(read_steps(plan.metrics_path), heldout.read(), seconds)


def _checked(heldout: Heldout, step: int) -> bool:
    checks = heldout.read()
    return bool(checks) and checks[-1].step >= step


def _plan(setup: Setup, children: Children) -> Plan:
    model_dir = models.provide(
        setup.model,
        seed=setup.seed,
        out=setup.out,
        cache=models.cache_dir(),
        children=children,
    )
    return Plan(
        options=Options(setup.model, Engine.LOCAL, setup.seed, setup.out),
        recipe=setup.recipe,
        model_dir=model_dir,
        serve_dir=model_dir,
        repo=REPO,
        cores=setup.cores,
        api_port=free_port(),
        server_port=free_port(),
    )


def _changed(spec: ProcessSpec, setup: Setup) -> ProcessSpec:
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
    """The command with these values, in place of the ones it has or at its end.

    None is a flag without a value.
    """
    words = list(argv)
    for flag, value in flags.items():
        if flag in words:
            words[words.index(flag) + 1] = str(value)
        else:
            words += [flag] if value is None else [flag, str(value)]
    return tuple(words)


def _answers(probe: httpx.Client, url: str) -> bool:
    try:
        return probe.get(url).is_success
    except httpx.TransportError:
        return False


def _wait_for(
    wanted: Child,
    running: list[Child],
    stop: StopRequest,
    deadline: float,
    or_until: Callable[[], bool] = lambda: False,
) -> None:
    """Until ``wanted`` ended well; the others may only end well, and before the deadline."""
    while True:
        stop.check()
        for child in running:
            ended = child.exit()
            if ended is not None and ended.returncode != 0:
                line = f"{child.spec.name} died ({ended}); log: {child.log}"
                raise RunFailed(line, child.log_tail())
        if wanted.exit() is not None or or_until():
            return
        if time.monotonic() > deadline:
            raise RunFailed(f"{wanted.spec.name} took too long; log: {wanted.log}")
        time.sleep(POLL_S)
