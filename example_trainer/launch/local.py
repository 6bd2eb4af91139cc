"""Local launcher: a whole run as child processes of this machine.

    api, inference servers -> ready -> environments, trainer -> watch -> end all

Reaction to the end of a process before the trainer is done:

    trainer        exit 0: the run is done. Else it is started again (ATROPOS_RUN_ID=1, 2 ...)
                   up to recover_retries times, if recover_mode is auto or fault
    inference      it and the trainer are started again, as one of the trainer's retries: the
                   new server holds first weights until the trainer publishes
    api, env       started again, up to ``restarts`` times each: the API resumes its queue, an
                   environment registers anew. An environment that exits with 0 is done

Only processes started here are signalled (atroposlib.processes).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from atroposlib.errors import AtroposError, ConfigError
from atroposlib.live.sources import RunSnapshot, Sources, WatchedRun
from atroposlib.live.view import View, clock, open_view
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
from atroposlib.utils.command import logs
from example_trainer.launch import roles
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.roles import Command, Endpoints
from example_trainer.launch.servers import choose_engine
from example_trainer.settings.weights import ServingSettings

POLL_S = 0.5
API_READY_TIMEOUT_S = 120.0
RESTART_GRACE_S = 5.0
GRACE_S = 30.0  # a trainer finishes publish and ack before it handles SIGTERM
TRAINER = "trainer"
FAILED, NOT_STARTED = 1, 2


class RestartPolicy:
    """Restart rule of a local run: see the table of the module.

    Args:
        trainer_retries: restarts of the trainer, alone or together with a server.
        restarts: restarts of each API and environment process.
        delay_s: pause before a restart.
    """

    def __init__(self, trainer_retries: int, restarts: int, delay_s: float) -> None:
        self.trainer_retries = trainer_retries
        self.restarts = restarts
        self.delay_s = delay_s
        self._attempt = 0  # ATROPOS_RUN_ID of the trainer
        self._restarted: Counter[str] = Counter()

    def look(self, run: Supervisor, child: Child, ended: Exit | None, now: float) -> None:
        if ended is None:
            return
        name = child.spec.name
        line = f"{name} {'failed' if name == TRAINER else 'died'} ({ended})"
        if child.spec.restartable:
            self._restart_alone(run, child, line)
        else:
            self._restart_trainer(run, child, line)

    def _restart_alone(self, run: Supervisor, child: Child, line: str) -> None:
        name = child.spec.name
        if self._restarted[name] >= self.restarts:
            starts = self._restarted[name] + 1
            raise child.failure(f"{line} and was started {starts} times; log: {child.log}")
        self._restarted[name] += 1
        run.print_line(
            f"{line}; starting it again ({self._restarted[name]} of {self.restarts})"
        )
        run.restart([name], pause_s=self.delay_s, grace_s=RESTART_GRACE_S)

    def _restart_trainer(self, run: Supervisor, child: Child, line: str) -> None:
        """Start the trainer again, after the inference server that died."""
        if self._attempt >= self.trainer_retries:
            starts = f"it was started {self._attempt + 1} times"
            limits = "(recover_retries, recover_mode)"
            raise child.failure(f"{line}; {starts} {limits}; log: {child.log}")
        self._attempt += 1
        run.print_line(f"{line}; attempt {self._attempt} of {self.trainer_retries} to recover")
        run.specs[TRAINER] = with_attempt(run.specs[TRAINER], self._attempt)
        names = dict.fromkeys((child.spec.name, TRAINER))
        run.restart(names, pause_s=self.delay_s, grace_s=GRACE_S)


def with_attempt(spec: ProcessSpec, attempt: int) -> ProcessSpec:
    """The trainer's process under ``ATROPOS_RUN_ID=attempt``."""
    return replace(spec, env={**spec.env, "ATROPOS_RUN_ID": str(attempt)})


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


def run_local(plan: Plan, stop: StopRequest, live: bool = True) -> None:
    """Start all processes and return when the trainer is done; show its steps meanwhile.

    Raises:
        ConfigError: the plan cannot be used.
        RunFailed: a process ended for good; names it, with the end of its log.
        Interrupted: a signal came.
    """
    settings, cfg = trainer_settings(plan)
    specs, started = processes(plan, cfg), time.monotonic()
    log_dir = plan.directory / "logs"
    policy = RestartPolicy(cfg.trainer_retries, plan.restarts, plan.restart_delay_s)
    api, server = (str(spec.health_url).removesuffix("/health") for spec in specs[:2])
    watched = WatchedRun(
        name="atropos-launch",
        title=f"{plan.name}: {cfg.model_name}",
        steps=cfg.training_steps,
        api_url=api,
        server_url=server,  # of several, the first
        local_server=choose_engine(plan.inference.engine) == "local",
        metrics_path=cfg.metrics_file,
        heldout_dir=plan.directory / "heldout",
    )
    sources = Sources(watched, started)
    view = open_view(Console(), live, as_logs=True)
    try:
        for line in (*(f"note: {note}" for note in settings.notes), f"logs in {log_dir}"):
            view.print_line(f"{plan.name}: {line}")
        with Children(log_dir, stop) as children:
            supervise(specs, children, stop, policy, view, sources.read)
    finally:
        view.close()
        sources.probe.close()
    took = f"{len(sources.rows())} steps in {clock(time.monotonic() - started)}"
    print(f"{plan.name}: done, {took}, in {plan.directory}")
    model = Path(cfg.save_path).absolute() / "final_model"
    print(f"model {model}, metrics {cfg.metrics_file.absolute()}, logs {log_dir}", flush=True)


def supervise(
    specs: Sequence[ProcessSpec],
    children: Children,
    stop: StopRequest,
    policy: RestartPolicy,
    view: View,
    snapshot: Callable[[], RunSnapshot],
) -> None:
    """Start every process, end all when the trainer exits with 0. Raises as run_local."""
    may_end = {spec.name for spec in specs if spec.health_url is None}
    run = Supervisor(
        specs, children, stop, policy, may_end=lambda: may_end, print_line=view.print_line
    )
    run.start_servers(view.waiting)
    run.start_workers()
    run.watch(
        lambda: run.completed(TRAINER), observe=lambda: view.show(snapshot()), poll_s=POLL_S
    )
    view.show(snapshot())  # with the last step
    children.end(list(run.specs), GRACE_S)


def processes(plan: Plan, served: ServingSettings) -> list[ProcessSpec]:
    """Return every process in the order of its start; restartable are API and environments."""
    ports = [port or free_port() for port in _wanted_ports(plan)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    at = Endpoints(urls[0], tuple(urls[1:]))
    python, here = sys.executable, "127.0.0.1"

    def spec(name: str, command: Command, url: str | None, within_s: float) -> ProcessSpec:
        env = {"PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1,localhost", **command.env}
        return ProcessSpec(name, command.argv, env, Path.cwd(), url, within_s)

    first = roles.api(plan, python, here, ports[0])
    found = [
        replace(spec("api", first, f"{at.api}/health", API_READY_TIMEOUT_S), restartable=True)
    ]
    for i, url in enumerate(at.inference):
        command = roles.inference(plan, served, python, here, ports[1 + i], i)
        bound_s = plan.inference.ready_within_s
        found.append(spec(f"inference-{i}", command, f"{url}/health", bound_s))
    for number, wanted in enumerate(plan.environments):
        for copy in range(wanted.count):
            name = roles.environment_name(plan, number)
            name = f"env-{number}-{name}" + (f"-{copy}" if wanted.count > 1 else "")
            command = roles.environment(plan, served, python, number, at)
            found.append(replace(spec(name, command, None, 0.0), restartable=True))
    trainer = spec(TRAINER, roles.trainer(plan, python, at), None, 0.0)
    found.append(with_attempt(trainer, 0))
    return found


def _wanted_ports(plan: Plan) -> list[int]:
    first = plan.inference.port
    return [plan.api.port, *(first and first + i for i in range(plan.inference.count))]
