"""Launcher of the quickstart: start, watch and end every process, then write the report.

preflight -> model (and vLLM) -> api, inference -> trainer, environment
          -> watch until the trainer is done -> last held-out check -> report -> verdict
"""

from __future__ import annotations

import math
import shutil
import sys
import time
import webbrowser
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from rich.console import Console

import atroposlib
from atroposlib.errors import AtroposError
from atroposlib.processes import (
    Children,
    Interrupted,
    RestartByHand,
    RunFailed,
    StopRequest,
    answers,
)
from atroposlib.processes.supervisor import RestartRule
from atroposlib.run_status.ended import recorded_outcome
from atroposlib.run_status.sources import Sources, version_of
from atroposlib.run_status.view import View, open_view, print_plain
from atroposlib.utils.tokenizers.loading import cache_dir
from example_trainer.launch import gpus
from example_trainer.launch.check import problems_of, require_none
from example_trainer.launch.local import LocalRun, processes
from example_trainer.launch.plan import trainer_settings
from example_trainer.quickstart import preflight
from example_trainer.quickstart.plan import commands_text, launch_plan, with_names
from example_trainer.quickstart.recipes import (
    Options,
    QuickstartPlan,
    Recipe,
    ServingEngine,
    recipe_for,
    sizes_of,
)
from example_trainer.quickstart.report import (
    Findings,
    next_steps,
    provenance,
    repeat_command,
    write_report,
)
from example_trainer.quickstart.verdict import judge, time_spent

GUIDE = "docs/environments.md"  # path in a clone, and in the installed package
LAST_CHECK_TIMEOUT_S = 120.0
WARM_UP_TIMEOUT_S = 180.0
_PACKAGE = Path(str(atroposlib.__file__)).parent
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
    trainer_settings(launch_plan(preflight.draft(options, recipe, REPO)))
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
            draft = preflight.draft(options, recipe, REPO)
            plan = preflight.prepare(draft, cache, children, view.waiting)
            run = QuickstartRun(plan, children, stop, view)
            try:
                run.begin()
                run.train()
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


class QuickstartRun(LocalRun):
    """Run from its first process to its last; ``rule`` replaces the restart by hand."""

    def __init__(
        self,
        start: QuickstartPlan,
        children: Children,
        stop: StopRequest,
        view: View,
        rule: RestartRule | None = None,
    ) -> None:
        self.started, self.started_at = time.monotonic(), time.time()
        self.trained_s = 0.0  # time from the first process to the end of the trainer
        self.quickstart = start
        self.notes: list[str] = []
        self.server_version: int | None = None
        plan, sources = launch_plan(start), Sources(start.watched(), self.started)
        require_none(problems_of(plan))
        _, cfg = trainer_settings(plan)
        shares = gpus.shared_out(plan, gpus.visible_gpus(), cfg.device == "cpu")
        health_url = f"{start.api_url}/health"
        signs = {
            "api": lambda _since: answers(health_url),
            "environment": sources.env_beat_after,
        }
        self.by_hand = RestartByHand(signs, start.options.restart_grace_s)
        super().__init__(
            plan,
            with_names(processes(plan, shares)),
            children,
            stop,
            rule or self.by_hand,
            view,
            sources,
            may_end=self._may_end,
            print_incident=self._print_note,
        )

    def begin(self) -> None:
        """Write commands.txt and start all processes; with vLLM, which needs all cores, in turn."""
        options = self.quickstart.options
        text = commands_text(self.quickstart, self.supervisor.specs.values())
        (options.out / "commands.txt").write_text(text, encoding="utf-8")
        page = f"{self.quickstart.api_url}/ui/"
        self.view.print_line(f"page {page}")
        local = options.engine is ServingEngine.LOCAL

        def prepare_servers() -> None:
            if options.browser:
                webbrowser.open(page)
            if not local:
                self._warm_up()

        self.start(("trainer", "environment") if local else (), prepare_servers)

    def _may_end(self) -> set[str]:
        """The trainer after its last step, the environment after its last batch."""
        is_idle = {
            "trainer": self.plan.end_record.exists(),
            "environment": self.sources.delivered >= self.quickstart.recipe.steps,
        }
        return {name for name, idle in is_idle.items() if idle}

    def _print_note(self, line: str) -> None:
        self.notes.append(line)
        self.view.print_line(line)

    def _warm_up(self) -> None:
        """Send a first request: vLLM takes up to a minute for it, which must not count as a
        rollout.
        """
        self.view.waiting("warming vLLM up")
        body = {"model": str(self.quickstart.model_dir), "prompt": [1, 1], "max_tokens": 2}
        url = f"{self.quickstart.server_url}/v1/completions"
        timed: Any = {"json": body, "timeout": WARM_UP_TIMEOUT_S}
        if self.sources.probe.text(url, "POST", **timed) is None:
            line = "inference: vLLM did not answer its first request"
            raise self.children["inference"].failure(line)

    def train(self, within_s: float = math.inf) -> None:
        """Watch until the trainer has finished and the last held-out check exists."""
        self.watch(self.is_trained, what="trainer", within_s=within_s)
        self.trained_s = time.monotonic() - self.started
        bound = time.monotonic() + LAST_CHECK_TIMEOUT_S
        self.watch(lambda: self.is_checked() or time.monotonic() > bound)
        self.server_version = version_of(self.sources.server_info())

    def is_checked(self) -> bool:
        """Whether the last held-out check is in, or will not come."""
        heldout = self.sources.heldout.read()
        is_in = bool(heldout) and heldout[-1].step >= self.quickstart.recipe.steps
        return is_in or self.children["environment"].exit() is not None

    def findings(self, failure: RunFailed | None) -> Findings:
        """Collect the contents of the report; called before the processes end."""
        plan, rows = self.quickstart, self.sources.rows()
        if failure is not None:
            self.server_version = version_of(self.sources.server_info())
            self.notes.append(failure.line)
        for name in self.by_hand.by_hand(time.monotonic()):
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
