"""Launcher of the quickstart: start, watch and end every process, then write the report.

preflight -> model (and vLLM) -> api, inference -> trainer, environment
          -> watch until the trainer is done -> last held-out check -> report -> verdict
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from rich.console import Console

from atroposlib.errors import AtroposError
from atroposlib.processes import (
    Children,
    Interrupted,
    RestartByHand,
    RunFailed,
    StopRequest,
    Supervisor,
    answers,
    free_port,
)
from atroposlib.quickstart import models, preflight, vllm_env
from atroposlib.quickstart.commands import commands_text, processes
from atroposlib.quickstart.recipes import (
    Options,
    QuickstartPlan,
    Recipe,
    ServingEngine,
    dtype_for,
    recipe_for,
    sizes_of,
)
from atroposlib.quickstart.report import (
    Findings,
    next_steps,
    provenance,
    repeat_command,
    write_report,
)
from atroposlib.quickstart.verdict import judge, time_spent
from atroposlib.run_status.ended import recorded_outcome
from atroposlib.run_status.sources import Sources, version_of
from atroposlib.run_status.view import View, open_view, print_plain
from atroposlib.utils.tokenizers.loading import cache_dir

GUIDE = "docs/environments.md"  # path in a clone, and in the installed package
WATCH_INTERVAL_S = 0.5
LAST_CHECK_TIMEOUT_S = 120.0
WARM_UP_TIMEOUT_S = 180.0
_PACKAGE = Path(__file__).resolve().parents[1]
# The folder with environments/ and docs/: the clone, or the installed package.
REPO = _PACKAGE.parent if (_PACKAGE.parent / "environments").is_dir() else _PACKAGE


class ExitStatus(IntEnum):
    LEARNED = 0
    FELL_SHORT = 1  # ran, but did not learn, or a process died
    NOT_STARTED = 2  # this machine or these options cannot run it


def quickstart(options: Options, console: Console | None = None) -> int:
    """Run the whole quickstart; return the exit status (128 + signal after a signal)."""
    console = console or Console()
    stop = StopRequest()
    stop.listen()
    try:
        return _quickstart(options, console, stop)
    except Interrupted as interrupted:
        console.print(f"quickstart: {interrupted}, everything it started has ended")
        return 128 + interrupted.signal_number
    except RunFailed as failure:
        for text in filter(None, (failure.tail, f"quickstart: {failure.line}")):
            print_plain(console, text)
        return ExitStatus.FELL_SHORT
    except AtroposError as error:
        print_plain(console, f"quickstart: {error}")
        return ExitStatus.NOT_STARTED


def _quickstart(options: Options, console: Console, stop: StopRequest) -> int:
    settings = options.env_settings
    own = preflight.own_settings(options.environment, settings) if options.environment else {}
    own |= sizes_of(settings)
    if options.groups is not None:
        own["groups_per_step"] = options.groups
    recipe = recipe_for(options.model, options.steps, options.environment, **own)
    cache = cache_dir()
    preflight.check(options, recipe, cache)
    options = replace(options, out=preflight.new_directory(options))
    with recorded_outcome(options.out, recipe.steps, options.out / "model", Interrupted):
        return _run(options, recipe, cache, console, stop)


def _run(
    options: Options, recipe: Recipe, cache: Path, console: Console, stop: StopRequest
) -> int:
    view = open_view(console, options.live)
    if options.environment:
        groups = f"{recipe.groups_per_step} groups of {recipe.group_size} samples per step"
        view.print_line(
            f"{options.environment.name}: {groups}, at most {recipe.seq_len} tokens"
        )
    failure: RunFailed | None = None
    findings: Findings | None = None
    try:
        with Children(options.out / "logs", stop) as children:
            plan = prepare(options, recipe, cache, children, view)
            run = QuickstartRun(plan, children, stop, view)
            try:
                run.start()
                run.watch()
            except RunFailed as error:
                failure = error
            findings = run.findings(failure)
    finally:
        view.close()
    if findings.rows:
        view.print_line(f"report: {shown_path(write_report(findings, plan))}")
    if failure is not None:
        raise failure
    final = plan.checkpoints / "final_model"
    if final.is_dir():
        final.replace(options.out / "model")
    for unneeded in (plan.checkpoints, options.out / "served"):
        shutil.rmtree(unneeded, ignore_errors=True)
    return print_outcome(view, findings)


def print_outcome(view: View, findings: Findings) -> int:
    """Print the unmet criteria if any, what to do next, and the summary line."""
    verdict, steps = findings.verdict, next_steps(findings)
    if not (findings.run / "model").is_dir():  # a trainer that was stopped saves none
        steps = steps[1:]
    lines = [f"{seconds:5.0f} s  {phase}" for phase, seconds in findings.spent.items()]
    lines += [f"fell short: {shortcoming}" for shortcoming in verdict.shortcomings]
    in_environment = sys.prefix != sys.base_prefix
    # make does not activate the environment it made.
    if shutil.which("atropos") is None and in_environment:
        lines.append(f"next: source {shown_path(Path(sys.prefix))}/bin/activate")
    width = max(len(how) for _, how in steps)
    lines += [f"next: {how:<{width}}  {what}" for what, how in steps]
    for line in [*lines, verdict.line()]:
        view.print_line(line)
    return ExitStatus.LEARNED if verdict.learned else ExitStatus.FELL_SHORT


def shown_path(path: Path) -> Path:
    """Return the path as a user in this directory would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def prepare(
    options: Options, recipe: Recipe, cache: Path, children: Children, view: View
) -> QuickstartPlan:
    """Provide model and engine, and make the plan."""
    view.waiting(models.preparation(options.model, cache))
    model_dir = models.provide(
        options.model, seed=options.seed, out=options.out, cache=cache, children=children
    )
    # A process may have fewer cores than the machine. macOS does not have the function.
    usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    plan = QuickstartPlan(
        options=options,
        recipe=recipe,
        model_dir=model_dir,
        serve_dir=model_dir,
        repo=REPO,
        cores=len(usable(0)),
        dtype=dtype_for(options, recipe, preflight.cpu_info("flags").split()),
        api_port=options.api_port or free_port(),
        server_port=options.server_port or free_port(),
    )
    if options.engine is ServingEngine.LOCAL:
        return plan
    view.waiting(f"installing {vllm_env.VLLM} (once, minutes; kept in {cache})")
    return replace(
        plan,
        engine_python=str(vllm_env.provide(cache, children)),
        serve_dir=models.untied_copy(model_dir, options.out / "served"),
    )


@dataclass
class QuickstartRun:
    """Run from its first process to its last."""

    plan: QuickstartPlan
    children: Children
    stop: StopRequest
    view: View

    def __post_init__(self) -> None:
        self.started, self.started_at = time.monotonic(), time.time()
        self.trained_s = 0.0  # time from the first process to the end of the trainer
        self.sources = Sources(self.plan.watched(), self.started)
        self.notes: list[str] = []
        self.server_version: int | None = None
        health_url = f"{self.plan.api_url}/health"
        self.rule = RestartByHand(
            {
                "api": lambda _since: answers(health_url),
                "environment": self.sources.env_beat_after,
            },
            self.plan.options.restart_grace_s,
        )
        self.supervisor = Supervisor(
            processes(self.plan),
            self.children,
            self.stop,
            self.rule,
            may_end=self._may_end,
            print_line=self.view.print_line,
            print_incident=self._print_note,
        )

    def start(self) -> None:
        """Write commands.txt and start all processes; with vLLM, which needs all cores, in turn."""
        (self.plan.options.out / "commands.txt").write_text(
            commands_text(self.plan, self.supervisor.specs.values()), encoding="utf-8"
        )
        page = f"{self.plan.api_url}/ui/"
        self.view.print_line(f"page {page}")
        local = self.plan.options.engine is ServingEngine.LOCAL
        early = ("trainer", "environment") if local else ()
        self.supervisor.start_servers(self.view.waiting, early)
        if self.plan.options.browser:
            webbrowser.open(page)
        if not local:
            self._warm_up()
        self.supervisor.start_workers(early)

    def _may_end(self) -> set[str]:
        """Whether the environment may end: after its last batch it has no more work."""
        over = self.sources.delivered >= self.plan.recipe.steps
        return {"trainer", "environment"} if over else {"trainer"}

    def _print_note(self, line: str) -> None:
        self.notes.append(line)
        self.view.print_line(line)

    def _warm_up(self) -> None:
        """Send a first request: vLLM takes up to a minute for it, which must not count as a
        rollout.
        """
        self.view.waiting("warming vLLM up")
        body = {"model": str(self.plan.model_dir), "prompt": [1, 1], "max_tokens": 2}
        url = f"{self.plan.server_url}/v1/completions"
        timed: Any = {"json": body, "timeout": WARM_UP_TIMEOUT_S}
        if self.sources.probe.text(url, "POST", **timed) is None:
            line = "inference: vLLM did not answer its first request"
            raise self.children["inference"].failure(line)

    def watch(self) -> None:
        """Watch until the trainer has finished with exit code 0 and the last held-out check
        exists.
        """
        self._watch_until(lambda: self.supervisor.has_completed("trainer"))
        self.trained_s = time.monotonic() - self.started
        bound = time.monotonic() + LAST_CHECK_TIMEOUT_S
        self._watch_until(
            lambda: (
                self._last_check_is_in()
                or self.children["environment"].exit() is not None
                or time.monotonic() > bound
            )
        )
        self.server_version = version_of(self.sources.server_info())

    def _last_check_is_in(self) -> bool:
        heldout = self.sources.heldout.read()
        return bool(heldout) and heldout[-1].step >= self.plan.recipe.steps

    def _watch_until(self, done: Callable[[], bool]) -> None:
        def show() -> None:
            self.view.show(self.sources.read())

        self.supervisor.watch(done, observe=show, poll_s=WATCH_INTERVAL_S)

    def findings(self, failure: RunFailed | None) -> Findings:
        """Collect the contents of the report; called before the processes end."""
        plan, rows = self.plan, self.sources.rows()
        if failure is not None:
            self.server_version = version_of(self.sources.server_info())
            self.notes.append(failure.line)
        for name in self.rule.by_hand(time.monotonic()):
            self._print_note(f"{name} was restarted by hand and still runs: end it yourself")
        ended_s = time.monotonic() - self.started
        trained_s = self.trained_s or ended_s
        verdict = judge(
            plan.recipe,
            rows,
            server_version=self.server_version,
            seconds=trained_s,
            cores=plan.cores,
        )
        heldout, checks = self.sources.heldout, self.sources.heldout.read()
        heldout.copy_samples(plan.options.out / "samples.jsonl")
        self.sources.probe.close()
        return Findings(
            title=f"atropos quickstart: {plan.options.model}",
            task=plan.recipe.task,
            verdict=verdict,
            rows=rows,
            heldout=[(c.step, c.exact) for c in checks if c.exact is not None],
            heldout_rewards=[(c.step, c.reward) for c in checks if c.reward is not None],
            answers=heldout.answers(),
            settings={**plan.settings(), **provenance(plan.repo)},
            run=shown_path(plan.options.out),
            guide=shown_path(plan.repo / GUIDE),
            repeat=repeat_command(plan.options),
            spent=time_spent(rows, self.started_at, trained_s, ended_s),
            notes=self.notes,
        )
