"""Local launcher: a whole run as child processes of this machine.

    checks of the plan -> api, inference, and scripts of environments, which check their own
    settings meanwhile -> ready -> other environments, trainer -> watch -> end all

Reaction to the end of a process before the trainer is done:

    trainer        exit 0 and its own record of the end: the run is done. Else it is started again
                   (ATROPOS_RUN_ID=1, 2 ...) up to recover_retries times, if recover_mode is auto
                   or fault
    exit code 2    invalid settings: the run ends, because another start fails alike
    the rest       started again, up to ``restarts`` times each: the API resumes its queue, an
                   environment registers anew, a server gets the current weights from the trainer
                   before it gets rollouts
    environment    exit 0: it is done. When all are, the trainer takes the batches that are left,
                   saves and ends, and the run has stopped at its step

Only processes started here are signalled (atroposlib.processes).
"""

from __future__ import annotations

import shlex
import sys
import time
import webbrowser
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from atroposlib.errors import AtroposError, ConfigError
from atroposlib.processes import (
    Child,
    Children,
    Exit,
    Interrupted,
    ProcessSpec,
    RunFailed,
    StopRequest,
    Supervisor,
    free_port,
)
from atroposlib.processes.supervisor import PrintLine, RestartRule
from atroposlib.run_status.ended import AGAIN, NO_ENVIRONMENT, recorded_outcome
from atroposlib.run_status.sources import Sources, WatchedRun
from atroposlib.run_status.view import View, clock, open_view
from atroposlib.utils.command import logs
from atroposlib.utils.command.folder_lock import FolderLock
from example_trainer.launch import gpus, roles
from example_trainer.launch.check import (
    check_environments,
    environment_variables,
    invalid_settings,
    problems_of,
    require_none,
)
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.roles import Command, Endpoints
from example_trainer.launch.servers import choose_engine, dtype_of_logits
from example_trainer.state import end

POLL_S = 0.5
API_READY_TIMEOUT_S = 120.0
RESTART_GRACE_S = 5.0
GRACE_S = 30.0  # a trainer finishes publish and ack before it handles SIGTERM
TRAINER, RUN_ID = "trainer", "ATROPOS_RUN_ID"
EVALUATION = "evaluation-server"  # its loss costs evaluations and not the run
FAILED, NOT_STARTED = 1, 2
ANOTHER_FOLDER = "wait for its end, or name another folder by out=FOLDER"
INVALID = Exit(NOT_STARTED)  # settings that another start does not change


class RestartPolicy:
    """Restart rule of a local run: see the table of the module.

    Args:
        trainer_retries: restarts of the trainer.
        restarts: restarts of each process but the trainer.
        delay_s: pause before a restart.
        places: of the plan's settings, for errors about them.
    """

    def __init__(
        self,
        trainer_retries: int,
        restarts: int,
        delay_s: float,
        places: Mapping[str, str] | None = None,
    ) -> None:
        self.trainer_retries = trainer_retries
        self.restarts = restarts
        self.delay_s = delay_s
        self.places = places or {}
        self._ends: Counter[str] = Counter()  # per process; the trainer's: the next RUN_ID

    def look(self, run: Supervisor, child: Child, ended: Exit | None, now: float) -> None:
        if ended is None:
            return
        if ended == INVALID:
            raise invalid_settings(child.log, self.places)
        name, trains = child.spec.name, child.spec.name == TRAINER
        line = f"{name} {'failed' if trains else 'died'} ({ended})"
        if trains and ended == Exit(0):
            line += " without its record of the end"
        limit = self.trainer_retries if trains else self.restarts
        self._ends[name] += 1
        ends = self._ends[name]
        if ends > limit and name == EVALUATION:
            if ends == limit + 1:
                run.print_incident(f"{line}; no evaluations from now on; log: {child.log}")
            return
        if ends > limit:
            which = "recover_retries, recover_mode" if trains else "restarts"
            times = f"it was started {ends} times ({which})"
            raise child.failure(f"{line}; {times}; log: {child.log}")
        run.print_incident(f"{line}; starting it again ({ends} of {limit})")
        if trains:
            run.specs[name] = replace(child.spec, env={**child.spec.env, RUN_ID: str(ends)})
        grace_s = GRACE_S if trains else RESTART_GRACE_S
        run.restart([name], pause_s=self.delay_s, grace_s=grace_s)


def newest_weights(*parents: Path) -> Path | None:
    """Return the model or adapter directory below ``parents`` that was written last."""
    configs = [path for parent in parents for path in parent.absolute().glob("*/*config.json")]
    return max(configs, key=lambda path: path.stat().st_mtime).parent if configs else None


def exit_status(prog: str, action: Callable[[], int]) -> int:
    """Return the status of ``action``; 1: a process failed; 2: not started; 128 + n: signal n."""
    try:
        return action()
    except Interrupted as interrupted:
        logs.report(prog, f"{interrupted}, everything it started has ended")
        return 128 + interrupted.signal_number
    except AtroposError as error:
        if isinstance(error, RunFailed) and error.tail:
            logs.report(prog, f"the end of its log:\n{error.tail}")
        logs.report(prog, error)
        return NOT_STARTED if isinstance(error, ConfigError) else FAILED


def run_local(plan: Plan, live: bool = True, browser: bool = False) -> int:
    """Start all processes and return 0 when the trainer is done; show its steps meanwhile.

    Args:
        browser: open the page of the run once the API answers.

    Raises:
        ConfigError: the plan cannot be used.
        RunFailed: a process ended for good; names it, with the end of its log.
        Interrupted: a signal came.
    """
    with FolderLock(plan.directory, ANOTHER_FOLDER):
        end.forget(plan.end_record)
        end.expect_groups(plan.end_record)
        require_none(problems_of(plan))
        _, cfg = trainer_settings(plan)
        model, steps = Path(cfg.save_path).absolute() / "final_model", cfg.training_steps
        with recorded_outcome(plan.directory, steps, model, Interrupted) as reasons:
            return _run(plan, live, browser, reasons)


def check_local(plan: Plan) -> int:
    """Check a whole plan as ``run_local`` would start it, and print its commands; 0 if it is sound.

    Raises:
        ConfigError: names every problem.
    """
    with FolderLock(plan.directory, ANOTHER_FOLDER):
        require_none(problems_of(plan))
        settings, cfg = trainer_settings(plan)
        for note in settings.notes:
            print(f"{plan.name}: note: {note}")
        shares = gpus.shared_out(plan, gpus.visible_gpus(), cfg.device == "cpu")
        for line in (*shares.lines, *check_environments(plan)):
            print(f"{plan.name}: {line}")
        for spec in processes(plan, shares):
            print(f"{spec.name}: {shlex.join(spec.argv)}")
    print(f"{plan.name}: the plan is sound, {cfg.training_steps} steps, in {plan.directory}")
    return 0


def _run(plan: Plan, live: bool, browser: bool, reasons: list[str]) -> int:
    settings, cfg = trainer_settings(plan)
    shares = gpus.shared_out(plan, gpus.visible_gpus(), cfg.device == "cpu")
    specs, started = processes(plan, shares), time.monotonic()
    stop = StopRequest()
    stop.listen()
    log_dir = plan.directory / "logs"
    policy = RestartPolicy(
        cfg.trainer_retries, plan.restarts, plan.restart_delay_s, plan.places
    )
    api, server = (str(spec.health_url).removesuffix("/health") for spec in specs[:2])
    engine = choose_engine(plan.inference.engine)
    watched = WatchedRun(
        name="atropos-launch",
        title=f"{plan.name}: {cfg.model_name}",
        steps=cfg.training_steps,
        api_url=api,
        server_url=server,  # the first of several
        local_server=engine == "local",
        metrics_path=cfg.metrics_file,
        heldout_dir=plan.directory / "heldout",
    )
    sources = Sources(watched, started)

    def open_page() -> None:
        if browser:
            webbrowser.open(f"{api}/ui/")

    view = open_view(Console(), live, as_logs=True)
    try:
        notes = (f"note: {note}" for note in settings.notes)
        logits = dtype_of_logits(engine, plan.inference.float32_head)
        served = f"inference by {engine}, logits in {logits}"
        page = f"page {api}/ui/"
        for line in (page, *notes, served, *shares.lines, f"logs in {log_dir}"):
            view.print_line(f"{plan.name}: {line}")
        with Children(log_dir, stop) as children:
            run = LocalRun(plan, specs, children, stop, policy, view, sources)
            # A script waits for servers and trainer by itself; a command of the author's may not.
            scripts = {spec.name for spec in specs if "serve" in spec.argv}
            run.start(scripts, open_page)
            run.watch(run.is_trained)
            view.show(sources.read())  # shows the last step
            children.end(list(run.supervisor.specs), GRACE_S)
    except (Interrupted, RunFailed):
        if weights := newest_weights(cfg.published, Path(cfg.save_path)):
            view.print_line(f"{plan.name}: newest weights: {weights}")
        view.print_line(f"{plan.name}: {AGAIN}")
        raise
    finally:
        view.close()
        sources.probe.close()
    step, state = end.ended_step(plan.end_record) or 0, "done"
    if step < cfg.training_steps:
        reasons.append(NO_ENVIRONMENT)
        state = f"stopped at step {step} of {cfg.training_steps}: {NO_ENVIRONMENT}"
    took = f"{len(sources.rows())} steps in {clock(time.monotonic() - started)}"
    print(f"{plan.name}: {state}, {took}, in {plan.directory}")
    model = Path(cfg.save_path).absolute() / "final_model"
    print(f"model {model}, metrics {cfg.metrics_file.absolute()}, logs {log_dir}")
    print(f"page: atropos view {plan.directory}", flush=True)
    return 0


class LocalRun:
    """Processes of a plan on this machine, from the first start to the end of the trainer.

    Args:
        specs: as :func:`processes` returns them.
        may_end: names of environments that exit status 0 completes now; by default all.
        print_incident: prints deaths and restarts; by default the view does.
    """

    def __init__(
        self,
        plan: Plan,
        specs: Sequence[ProcessSpec],
        children: Children,
        stop: StopRequest,
        rule: RestartRule,
        view: View,
        sources: Sources,
        *,
        may_end: Callable[[], Collection[str]] | None = None,
        print_incident: PrintLine | None = None,
    ) -> None:
        self.plan, self.children, self.view, self.sources = plan, children, view, sources
        self.environments = {spec.name for spec in specs if not spec.health_url} - {TRAINER}
        self.supervisor = Supervisor(
            specs,
            children,
            stop,
            rule,
            may_end=may_end or (lambda: self.environments),
            print_line=view.print_line,
            print_incident=print_incident,
        )
        self._trainer_knows = False  # that every environment has ended

    def start(
        self, early: Collection[str] = (), on_ready: Callable[[], None] = lambda: None
    ) -> None:
        """Start servers and ``early``, wait for the servers, start the rest; raises as run_local."""

        def waiting(line: str) -> None:
            for name in early:
                if self.children[name].exit() == INVALID:
                    raise invalid_settings(self.children[name].log, self.plan.places)
            self.view.waiting(line)

        self.supervisor.start_servers(waiting, early)
        on_ready()
        self.supervisor.start_workers(early)

    def watch(self, done: Callable[[], bool], **bounds: Any) -> None:
        """Watch every process and show the run until ``done``; raises as run_local."""

        def show() -> None:
            self.view.show(self.sources.read())

        self.supervisor.watch(done, observe=show, poll_s=POLL_S, **bounds)

    def is_trained(self) -> bool:
        """Whether the trainer has ended with its record of the end.

        When every environment has ended the trainer is told so: the trainer takes the batches that
        are left, and ends.
        """
        record = self.plan.end_record
        ended = self.environments and self.environments <= self.supervisor.completed
        if ended and not self._trainer_knows and self.sources.has_no_environment():
            self._trainer_knows = True
            self.view.print_line(
                f"{NO_ENVIRONMENT}: the trainer takes what is left, and saves"
            )
            end.expect_no_groups(record)
        return self.supervisor.has_completed(TRAINER) and record.exists()


def processes(plan: Plan, shares: gpus.GpuShares) -> list[ProcessSpec]:
    """Return every process. All but the trainer, the last, may be restarted by hand."""
    _, served = trainer_settings(plan)
    first, count = plan.inference.port, plan.inference.count
    servers = count + roles.needs_evaluation_server(plan)
    of_servers = (first and first + i for i in range(servers))
    of_teachers = (section.port for section in plan.teachers.values())
    ports = [port or free_port() for port in (plan.api.port, *of_servers, *of_teachers)]
    every_url = [f"http://127.0.0.1:{port}" for port in ports]
    urls, teacher_urls = every_url[: 1 + servers], every_url[1 + servers :]
    evaluation = urls[1 + count] if servers > count else None
    named = dict(zip(plan.teachers, teacher_urls))
    at = Endpoints(urls[0], tuple(urls[1 : 1 + count]), None, evaluation, named)
    python, here = sys.executable, "127.0.0.1"

    def spec(name: str, command: Command, url: str | None, within_s: float) -> ProcessSpec:
        env = {"PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1,localhost", **command.env}
        return ProcessSpec(name, command.argv, env, Path.cwd(), url, within_s, name != TRAINER)

    api = roles.api(plan, python, here, ports[0])
    specs = [spec("api", api, f"{at.api}/health", API_READY_TIMEOUT_S)]
    for i, url in enumerate(urls[1:]):
        is_announced = i < count
        command = roles.inference(
            plan,
            served,
            python,
            here,
            ports[1 + i],
            i,
            at,
            gpus=shares.servers[i],
            memory_share=shares.memory_share,
            is_announced=is_announced,
        )
        bound_s = plan.inference.ready_within_s
        name = f"inference-{i}" if is_announced else EVALUATION
        specs.append(spec(name, command, f"{url}/health", bound_s))
    for number, (name, url) in enumerate(named.items()):
        own_gpus, share = shares.teachers.get(name, (None, None))
        port = ports[1 + servers + number]
        command = roles.teacher(
            plan, served, python, number, here, port, gpus=own_gpus, memory_share=share
        )
        bound_s = plan.teachers[name].ready_within_s
        specs.append(spec(f"teacher-{name}", command, f"{url}/health", bound_s))
    for number, wanted in enumerate(plan.environments):
        for copy in range(wanted.count):
            name = roles.environment_name(plan, number)
            name = f"env-{number}-{name}" + (f"-{copy}" if wanted.count > 1 else "")
            command = roles.environment(plan, served, python, number, at, str(copy))
            filled = environment_variables(plan, served.sequences_per_step)
            command = replace(command, env={**filled, **command.env})
            specs.append(spec(name, command, None, 0.0))
    trains = roles.trainer(plan, python, at, gpus=shares.trainer)
    trainer = spec(TRAINER, trains, None, 0.0)
    return [*specs, replace(trainer, env={**trainer.env, RUN_ID: "0"})]
