"""A whole run as child processes of this machine.

    api, inference servers -> ready -> environments, trainer -> watch -> end all

What happens when one ends before the trainer is done:

    trainer        exit 0: the run is done. Else it is started again (ATROPOS_RUN_ID=1, 2 ...)
                   up to recover_retries times, if recover_mode is auto or fault
    inference      it and the trainer are started again, as one of the trainer's retries: the
                   new server holds first weights until the trainer publishes
    api, env       started again, up to ``restarts`` times each: the API resumes its queue, an
                   environment registers anew. An environment that exits with 0 is done

Only processes started here are ever signalled (atroposlib.processes).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from atroposlib.processes import Children, ProcessSpec, RunFailed, StopRequest, free_port
from example_trainer.launch import roles
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.roles import Command, Endpoints
from example_trainer.settings.config import TrainingConfig

POLL_S = 0.2
API_READY_S = 120.0
PROBE_TIMEOUT_S = 2.0
GRACE_S = 30.0  # a trainer finishes publish and ack before it listens to SIGTERM
TRAINER = "trainer"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Policy:
    """Who is started again, and how often."""

    trainer_retries: int
    restarts: int
    delay_s: float

    @classmethod
    def of(cls, plan: Plan, cfg: TrainingConfig) -> Policy:
        retries = cfg.recover_retries if cfg.recover_mode in ("auto", "fault") else 0
        return cls(retries, plan.restarts, plan.restart_delay_s)


def run_local(plan: Plan, stop: StopRequest, say: Say = print) -> None:
    """Start everything, return when the trainer is done.

    Raises:
        ConfigError: the plan cannot be used.
        RunFailed: a process ended for good; names it, with the end of its log.
        Interrupted: a signal came.
    """
    settings, cfg = trainer_settings(plan)
    for note in settings.notes:
        say(f"note: {note}")
    specs = processes(plan, cfg)
    logs = plan.directory / "logs"
    say(f"{plan.name}: logs in {logs}")
    with Children(logs, stop) as children:
        Run(specs, children, stop, Policy.of(plan, cfg), say).to_end()
    say(f"{plan.name}: done; models in {cfg.save_path}")


def processes(plan: Plan, cfg: TrainingConfig) -> list[ProcessSpec]:
    """Every process in the order of its start; restartable are API and environments."""
    ports = [port or free_port() for port in _wanted_ports(plan)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    at = Endpoints(urls[0], tuple(urls[1:]))
    python, here = sys.executable, "127.0.0.1"

    def spec(name: str, command: Command, url: str | None, within_s: float) -> ProcessSpec:
        env = {"PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1,localhost", **command.env}
        return ProcessSpec(name, command.argv, env, Path.cwd(), url, within_s)

    first = roles.api(plan, python, here, ports[0])
    found = [replace(spec("api", first, f"{at.api}/health", API_READY_S), restartable=True)]
    for i, url in enumerate(at.inference):
        command = roles.inference(plan, cfg, python, here, ports[1 + i], i)
        bound_s = plan.inference.ready_within_s
        found.append(spec(f"inference-{i}", command, f"{url}/health", bound_s))
    for number, wanted in enumerate(plan.environments):
        for copy in range(wanted.count):
            name = roles.environment_name(plan, number)
            name = f"env-{number}-{name}" + (f"-{copy}" if wanted.count > 1 else "")
            command = roles.environment(plan, cfg, python, number, at)
            found.append(replace(spec(name, command, None, 0.0), restartable=True))
    ranks = roles.Ranks(nproc=plan.trainer.nproc)
    found.append(spec(TRAINER, roles.trainer(plan, python, at, ranks), None, 0.0))
    return found


def _wanted_ports(plan: Plan) -> list[int]:
    first = plan.inference.port
    return [plan.api.port, *(first and first + i for i in range(plan.inference.count))]


class Run:
    """The processes of a run from their start to the trainer's end."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        children: Children,
        stop: StopRequest,
        policy: Policy,
        say: Say = print,
    ) -> None:
        self.specs: Mapping[str, ProcessSpec] = {spec.name: spec for spec in specs}
        self.children = children
        self.stop = stop
        self.policy = policy
        self.say = say
        self.attempt = 0  # of the trainer: its ATROPOS_RUN_ID
        self.restarts: Counter[str] = Counter()
        self._finished: set[str] = set()  # environments that are done

    def to_end(self) -> None:
        """Raises RunFailed or Interrupted; returns when the trainer exited with 0."""
        serving = [name for name, spec in self.specs.items() if spec.health_url]
        with httpx.Client(timeout=PROBE_TIMEOUT_S, trust_env=False) as client:
            self._client = client
            for name in serving:
                self._start(name)
            self.children.wait_ready(serving, self._answers)
            for name in self.specs:
                if name not in serving:
                    self._start(name)
            while not self._look():
                self.stop.check()
                time.sleep(POLL_S)
        # The trainer is done; the rest has nothing left to do.
        self.children.end([name for name in self.specs], GRACE_S)

    def _look(self) -> bool:
        """One look at every process; whether the trainer is done."""
        ended = self.children[TRAINER].exit()
        if ended is not None and ended.returncode == 0:
            return True
        if ended is not None:
            self._again_with_trainer(f"{TRAINER} failed ({ended})", TRAINER)
            return False
        for name, spec in self.specs.items():
            ended = None if name in self._finished else self.children[name].exit()
            if ended is None or name == TRAINER:
                continue
            if not spec.restartable:
                self._again_with_trainer(f"{name} died ({ended})", name)
                return False
            if ended.returncode == 0 and spec.health_url is None:
                self._finished.add(name)
                self.say(f"{name} is done")
            else:
                self._again(f"{name} died ({ended})", name)
        return False

    def _again(self, line: str, name: str) -> None:
        """Start one process again that others can wait for."""
        if self.restarts[name] >= self.policy.restarts:
            tail = self.children[name].log_tail()
            raise RunFailed(f"{line} and was started {self.restarts[name] + 1} times", tail)
        self.restarts[name] += 1
        self.say(
            f"{line}; starting it again ({self.restarts[name]} of {self.policy.restarts})"
        )
        self.children.end([name])
        self._wait()
        self._start(name)

    def _again_with_trainer(self, line: str, name: str) -> None:
        """Start the trainer again, and with it the inference server that died."""
        if self.attempt >= self.policy.trainer_retries:
            raise RunFailed(
                f"{line}; it was started {self.attempt + 1} times"
                " (recover_retries, recover_mode)",
                self.children[name].log_tail(),
            )
        self.attempt += 1
        self.say(f"{line}; attempt {self.attempt} of {self.policy.trainer_retries} to recover")
        self.children.end(list(dict.fromkeys((name, TRAINER))), GRACE_S)
        self._wait()
        if name != TRAINER:
            self._start(name)
            self.children.wait_ready([name], self._answers)
        self._start(TRAINER)

    def _start(self, name: str) -> None:
        spec = self.specs[name]
        if name == TRAINER:
            spec = replace(spec, env={**spec.env, "ATROPOS_RUN_ID": str(self.attempt)})
        self.children.start(spec)

    def _wait(self) -> None:
        """The pause before a restart; a signal ends it."""
        until = time.monotonic() + self.policy.delay_s
        while time.monotonic() < until:
            self.stop.check()
            time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))

    def _answers(self, url: str) -> bool:
        try:
            return self._client.get(url).is_success
        except httpx.TransportError:
            return False
