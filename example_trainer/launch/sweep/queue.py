"""Queue of a sweep on this machine: its runs as child processes, some side by side.

    lock, checks of all runs -> files -> `atropos run` for the file of each waiting run -> table

state of a run at the start    reaction
    done                       left alone: the trainer recorded its end
    stopped, new               started; a stopped run goes on from its last checkpoint
    failed                     named, and started once more; left alone with ``skip_failed``

A failed run does not end the sweep. Ctrl-C ends the runs in order, and a killed launcher takes
its runs with it (atroposlib.processes). The same command goes on.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from atroposlib.errors import ConfigError
from atroposlib.processes import Children, Exit, Interrupted, ProcessSpec, StopRequest
from atroposlib.utils.command.folder_lock import FolderLock
from example_trainer.launch import gpus
from example_trainer.launch.check import check_environments
from example_trainer.launch.local import ANOTHER_FOLDER, GRACE_S, POLL_S
from example_trainer.launch.plan import Plan
from example_trainer.launch.sweep.runs import (
    SweepRun,
    changed_settings,
    raise_problems,
    record_of,
    require_apart,
    require_startable_runs,
    require_submittable_runs,
    write_files,
)
from example_trainer.launch.sweep.table import SweepView, TableRow

LOG = "logs/launcher"  # file below the folder of a run
AGAIN = "the same command goes on"


@dataclass(frozen=True)
class QueueOptions:
    """Options of the command.

    Attributes:
        what: word after `atropos run` for each run.
        jobs: runs side by side; each has an equal part of the GPUs.
        skip_failed: leave runs alone that failed in an earlier start.
        launcher: command that takes ``what`` and the file of a run.
    """

    what: str = "local"
    jobs: int = 1
    skip_failed: bool = False
    live: bool = True
    launcher: tuple[str, ...] = (sys.executable, "-m", "example_trainer.launch")


def device_parts(visible: Sequence[str], jobs: int) -> list[tuple[str, ...]]:
    """The GPUs of each of the runs side by side; empty where there are none. Pure.

    Raises:
        ConfigError: there are fewer GPUs than runs.
    """
    size = len(visible) // jobs
    if visible and not size:
        raise ConfigError(
            f"--jobs {jobs} needs a GPU for each run: {len(visible)} are visible"
        )
    return [tuple(visible[i * size : (i + 1) * size]) for i in range(jobs)]


def run_sweep(base: Plan, runs: Sequence[SweepRun], options: QueueOptions) -> int:
    """Run every combination that is not done; 0 if all are done in the end, else 1.

    Raises:
        ConfigError: names every problem of the sweep; nothing was started.
        Interrupted: a signal came, and all runs have ended.
    """
    with FolderLock(base.directory, ANOTHER_FOLDER):
        visible = gpus.visible_gpus() if options.what == "local" else ()
        queue = SweepQueue(base, runs, options, device_parts(visible, options.jobs))
        for line in check_runs(queue.waiting, queue.devices, options):
            print(f"{base.name}: {line}", flush=True)
        write_files(base, runs)
        stop = StopRequest()
        stop.listen()
        return queue.run(stop)


def check_runs(
    runs: Sequence[SweepRun], devices: Sequence[Sequence[str]], options: QueueOptions
) -> Iterator[str]:
    """Check all runs before the first starts; a line about each environment.

    Raises:
        ConfigError: names every problem.
    """
    require_apart(runs)
    if options.what != "local":
        require_submittable_runs(runs, plugins_here=True)
        return
    require_startable_runs(runs, devices)
    checked: set[str] = set()
    problems: list[tuple[str, str]] = []
    for run in runs:
        sections = [section.model_dump() for section in run.plan.environments]
        kind = json.dumps([sections, run.cfg.sequences_per_step, run.cfg.model_name])
        if kind not in checked:
            checked.add(kind)
            try:
                yield from check_environments(run.plan)
            except ConfigError as error:
                problems.append((run.name, str(error)))
    raise_problems(problems, len(runs))


class SweepQueue:
    """The runs of a sweep, from the first start to the end of the last.

    Attributes:
        waiting: runs to start, in order.
        devices: GPUs of each place in which a run may run.
    """

    def __init__(
        self,
        base: Plan,
        runs: Sequence[SweepRun],
        options: QueueOptions,
        devices: Sequence[Sequence[str]],
    ) -> None:
        self.base = base
        self.options = options
        self.devices = devices
        self.rows: dict[str, TableRow] = {}
        self.waiting: list[SweepRun] = []
        self.notes: list[str] = []
        self.runs = {run.name: run for run in runs}
        for run in runs:
            record = record_of(run)
            row = TableRow(
                run.name,
                run.cfg.metrics_file,
                run.cfg.training_steps,
                record.state,
                record.problem,
            )
            row.refresh(0.0)
            self.rows[run.name] = row
            if record.state == "failed":
                reaction = "skipped" if options.skip_failed else "started once more"
                self.notes.append(f"{run.name} failed ({record.problem}): {reaction}")
            if record.state == "done" and (changed := changed_settings(run)):
                self.notes.append(
                    f"{run.name} is done with other settings ({'; '.join(changed)}): delete"
                    f" {run.plan.directory} to train it again, or give it the settings that it had"
                )
            left_alone = record.state == "failed" and options.skip_failed
            if record.state != "done" and not left_alone:
                self.waiting.append(run)

    def run(self, stop: StopRequest) -> int:
        """Start the waiting runs and wait for their ends; the exit status of the sweep.

        Raises:
            Interrupted: a stop was requested, and all runs have ended.
        """
        console = Console()
        view = SweepView(console, self.options.live and console.is_terminal)
        states = Counter(row.state for row in self.rows.values())
        listed = ", ".join(f"{count} {state}" for state, count in states.items())
        beside = f", {self.options.jobs} side by side" if self.options.jobs > 1 else ""
        for line in (
            f"{len(self.runs)} runs in {self.base.directory}: {listed}{beside}",
            *self.notes,
        ):
            view.print_line(f"{self.base.name}: {line}")
        try:
            with Children(self.base.directory, stop) as children:
                self._run_all(children, stop, view)
        finally:
            view.close([*self.rows.values()])
        is_done = all(row.state == "done" for row in self.rows.values())
        view.print_line(f"{self.base.name}: {'done' if is_done else AGAIN}")
        view.print_line(f"compare: atropos ui {self.base.directory}")
        return 0 if is_done else 1

    def _run_all(self, children: Children, stop: StopRequest, view: SweepView) -> None:
        free = [*range(len(self.devices))]
        running: dict[str, int] = {}
        try:
            while self.waiting or running:
                stop.check()
                while free and self.waiting:
                    run = self.waiting.pop(0)
                    running[run.name] = free.pop(0)
                    self._start(run, self.devices[running[run.name]], children, view)
                for name in [*running]:
                    child = children[_log_name(name)]
                    if (ended := child.exit()) is not None:
                        children.end([child.spec.name])
                        self._note_end(name, ended, child.log, view)
                        free.append(running.pop(name))
                view.show([*self.rows.values()])
                time.sleep(POLL_S)
        except Interrupted:
            view.print_line(f"{self.base.name}: stopping {', '.join(running)}; {AGAIN}")
            children.end([_log_name(name) for name in running], GRACE_S)
            for name in running:
                self.rows[name].state = "stopped"
            raise

    def _start(
        self, run: SweepRun, visible: Sequence[str], children: Children, view: SweepView
    ) -> None:
        row = self.rows[run.name]
        folder = run.plan.directory
        argv = (*self.options.launcher, self.options.what, "--config", str(run.file))
        env = {gpus.VARIABLE: ",".join(visible)} if visible else {}
        (folder / LOG).parent.mkdir(parents=True, exist_ok=True)
        children.start(ProcessSpec(_log_name(run.name), argv, env, Path.cwd()))
        goes_on = "goes on" if row.state == "stopped" else "starts"
        row.state, row.problem = "running", ""
        row.started = time.monotonic()
        number = [*self.rows].index(run.name) + 1
        view.print_line(f"{run.name}: {goes_on} ({number} of {len(self.rows)})")

    def _note_end(self, name: str, ended: Exit, log: Path, view: SweepView) -> None:
        record, row = record_of(self.runs[name]), self.rows[name]
        row.refresh(time.monotonic())
        row.started = None
        row.state, row.problem = record.state, record.problem
        if record.state != "done":
            # A launcher that refuses its start, or is killed, records no failure.
            row.state = "failed"
            row.problem = record.problem or f"{ended}; log: {log}"
        _, state, step, reward, took, problem = row.cells()
        line = f"{name}: {state}, step {step}, reward {reward}, {took}"
        view.print_line(f"{line}; {problem}" if problem else line)


def _log_name(run: str) -> str:
    """The name of a run's process: its log lies in the folder of the run."""
    return f"{run}/{LOG}"
