"""Entry point of a cluster job: wait for the address of the API, then become the process of its role.

Some jobs start it as a child, which ends with the job:

    any role, on SLURM           it also ends when a later start of the job has taken its place
    an environment, on SLURM     its status 0 is noted, and after the last one the word for the
      and Ray                    trainer that no groups come
    the trainer, on Kubernetes   its status 0 counts with its record of the end only

The place of a role is the file ``<out>/launch/places/<role>-<index>``, which holds the latest start
of its job. A node that SLURM has lost keeps its processes, and thereby the lock of the queue and the
GPUs, while the job starts again elsewhere; SLURM's controller may be out of reach there, so that the
old processes cannot ask it.

The address of the API travels as the file ``<out>/launch/endpoints/api``, which all nodes must
see: a line ``http://host:port``, replaced whole when its job starts anew. Servers announce
themselves to the API, which lists them.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.processes import (
    Children,
    Interrupted,
    ProcessSpec,
    StopRequest,
    Supervisor,
    free_port,
)
from atroposlib.run_status.ended import NO_ENVIRONMENT
from atroposlib.run_status.sources import has_environment
from atroposlib.utils.command.signals import on_signals
from atroposlib.utils.io import write_whole
from example_trainer.launch import roles
from example_trainer.launch.k8s import AGAIN
from example_trainer.launch.local import GRACE_S, RestartPolicy
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.roles import Command, Endpoints, gpus_of
from example_trainer.launch.slurm import ENDPOINTS, TOKEN, TOKENS
from example_trainer.launch.teachers.wiring import teachers_named
from example_trainer.state import end

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
T = TypeVar("T")
logger = logging.getLogger(__name__)
POLL_S = 2.0
PLACES, PLACE_S = "places", 5.0  # folder, and seconds between two looks at a place
RECORD_S = 60.0  # wait for the record from another node after the ranks of this node ended
COPY = "ATROPOS_COPY"  # number of an environment of which the plan has several
COPIES = (COPY, "SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")
TOLD = {COPY, "SLURM_JOB_ID"}  # one of them is there where SLURM or Ray started this process
PORT = "ATROPOS_POD_PORT"  # port of this pod's server, before that of the plan
PYTHON = "ATROPOS_PYTHON"  # interpreter of this node, before that of the plan


class EndpointTimeout(AtroposError):
    """A job of the run did not publish its address in time; the message names it."""


def load_plan(path: str | Path) -> Plan:
    """Raise ConfigError if the file is not a plan written by ``atropos-launch``."""
    try:
        plan = Plan(**json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a launch plan: {error}") from error
    plan.read_from(Path(path))
    return plan


def exec_role(plan: Plan, role: str, index: int, meet: str | None) -> None:
    """Replace this process with that of the role; does not return.

    Raises:
        ConfigError: the plan cannot be used.
        EndpointTimeout: see the class.
    """
    command = command_of(plan, role, index, meet, os.environ)
    print(f"{role}: {' '.join(command.argv)}", flush=True)
    env = {**os.environ, **_given_variables(plan, command)}
    os.execvpe(command.argv[0], list(command.argv), env)


def run_role(plan: Plan, role: str, index: int, meet: str | None) -> int:
    """Run the role as a child; its status, 75 if a later start of its job has taken its place.

    Raises: as :func:`exec_role`.
    """
    is_lost = take_place(plan, f"{role}-{index}", os.environ)
    name = f"{index}-{copy_of(os.environ)}"
    ends = role == "environment" and is_child(role, os.environ)
    if is_lost():
        return _lost_status(role)
    if ends and end.has_environment_ended(plan.end_record, name):
        print(f"environment {index}: it has ended before, in this run", flush=True)
        note_end(plan, name)
        return 0
    command = command_of(plan, role, index, meet, os.environ)
    print(f"{role}: {' '.join(command.argv)}", flush=True)
    env = {**os.environ, **_given_variables(plan, command)}
    child = subprocess.Popen(command.argv, env=env, preexec_fn=_end_with_parent)
    signals: list[int] = []

    def note(number: int) -> None:
        signals.append(number)
        # SLURM and Ray signal the child too: passed on, a signal would count twice.
        if os.environ.keys().isdisjoint(TOLD):
            child.send_signal(number)

    on_signals(note, signal.SIGTERM, signal.SIGINT)
    while not is_lost():
        try:
            status = child.wait(PLACE_S)
        except subprocess.TimeoutExpired:
            continue
        if ends and status == 0 and not signals:
            note_end(plan, name)
        return status if status >= 0 else 128 - status
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return _lost_status(role)


def _lost_status(role: str) -> int:
    logger.error(f"a later start of this job has its place: the {role} of this node ends")
    return AGAIN


def is_child(role: str, env: Mapping[str, str]) -> bool:
    """Whether the process of the role is a child of its job's."""
    return "SLURM_JOB_ID" in env or (role == "environment" and COPY in env)


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent dies, by SIGKILL too (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def take_place(plan: Plan, name: str, env: Mapping[str, str]) -> Callable[[], bool]:
    """Take the place of a role for this start of a SLURM job, unless a later start has it.

    Returns:
        Whether a later start has the place, as a function; outside SLURM none has.
    """
    if "SLURM_JOB_ID" not in env:
        return lambda: False
    # A link of a chain has a higher id than those before it, and so has a job submitted later.
    own = [int(env["SLURM_JOB_ID"]), int(env.get("SLURM_RESTART_COUNT") or 0)]
    file = plan.launched / PLACES / f"{name}-{env.get('SLURM_ARRAY_TASK_ID', '0')}"

    def is_lost() -> bool:
        try:
            return [int(word) for word in file.read_text(encoding="utf-8").split()] > own
        except (OSError, ValueError):
            return False

    if not is_lost():
        write_whole(file, " ".join(map(str, own)) + "\n")
    return is_lost


def note_end(plan: Plan, name: str) -> None:
    """Note that an environment has ended; after the last one, write that no groups come.

    That waits until the API has no environment, because a person may have started further ones. A
    signal ends the wait.
    """
    end.note_environment(plan.end_record, name)
    if end.environments_ended(plan.end_record) < sum(one.count for one in plan.environments):
        return
    stop = StopRequest()
    stop.listen()
    at = endpoints(plan, plan.launched / ENDPOINTS / "api")
    with RolloutClient(at.api_address, token=token_of(plan)) as client:
        while has_environment(client.status().model_dump()):
            if stop.count:
                return
            time.sleep(POLL_S)
    print(f"{NO_ENVIRONMENT}: the trainer takes what is left, and saves", flush=True)
    end.expect_no_groups(plan.end_record)


def recorded_status(plan: Plan, status: int) -> int:
    """The status of a pod's trainer: 1 for a 0 without its record of the end."""
    until = time.monotonic() + RECORD_S
    while status == 0 and not plan.end_record.exists():
        if time.monotonic() > until:
            logger.error(f"the trainer ended without a record of its end, {plan.end_record}")
            return 1
        time.sleep(POLL_S)
    return status


def _given_variables(plan: Plan, command: Command) -> dict[str, str]:
    return {"PYTHONUNBUFFERED": "1", **command.env, "ATROPOS_API_TOKEN": token_of(plan)}


def token_of(plan: Plan) -> str:
    """Return the token of the rollout API of the run."""
    return (plan.files / TOKEN).read_text(encoding="utf-8").strip()


def run_servers(plan: Plan, first: int, count: int) -> int:
    """Run inference servers of a job until a signal; a server that dies is started again.

    Raises:
        ConfigError: the plan cannot be used.
        RunFailed: a server died more than ``restarts`` times.
    """
    specs, visible = [], os.environ.get("CUDA_VISIBLE_DEVICES")
    for place in range(count):
        index = first + place
        command = command_of(plan, "inference", index, None, os.environ)
        env = {**gpus_at(plan, place, visible), **_given_variables(plan, command)}
        specs.append(ProcessSpec(f"inference-{index}", command.argv, env, Path.cwd()))
    is_lost = take_place(plan, f"inference-{first}", os.environ)
    stop = StopRequest()
    stop.listen()
    logs = plan.directory / "logs"
    print(f"inference: {count} servers, logs {logs}/inference-*.log", flush=True)
    policy = RestartPolicy(0, plan.restarts, plan.restart_delay_s)
    with Children(logs, stop) as children:
        run = Supervisor(specs, children, stop, policy)
        run.start_workers()
        try:
            run.watch(is_lost, what="the servers")
            return _lost_status("servers")
        except Interrupted as interrupted:
            print(f"inference: {interrupted}, the servers end", flush=True)
            children.end(list(run.specs), GRACE_S)
    return 0


def gpus_at(plan: Plan, place: int, visible: str | None) -> dict[str, str]:
    """Return the variable that names the GPUs of a server of a job, if it uses some.

    Args:
        visible: the GPUs of the job, by commas; None: it has GPUs from 0 on.
    """
    wanted = gpus_of(plan)["inference"]
    places = range(place * wanted, (place + 1) * wanted)
    names = visible.split(",") if visible else [str(gpu) for gpu in range(places.stop)]
    if len(names) < places.stop:
        raise ConfigError(
            f"slurm.servers_per_job: server {place} of {wanted} GPUs (inference.tensor_parallel)"
            f" has none left of {len(names)}, CUDA_VISIBLE_DEVICES={visible}"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[gpu] for gpu in places)} if wanted else {}


def command_of(
    plan: Plan, role: str, index: int, meet: str | None, env: Mapping[str, str]
) -> Command:
    """Return the command of a role on this node; the API first publishes its address."""
    python, (_, served) = env.get(PYTHON) or plan.slurm.python, trainer_settings(plan)
    host = env.get("ATROPOS_HOST") or env.get("SLURMD_NODENAME") or socket.gethostname()
    host, everywhere = (f"[{host}]", "::") if ":" in host else (host, "0.0.0.0")
    if role == "api":
        port = int(env.get(PORT) or plan.api.port or free_port())
        announce(plan, host, port)
        command = roles.api(plan, python, everywhere, port)
        tokens = ("--tokens", str(plan.files / TOKENS), "--insecure-plaintext")
        return Command((*command.argv, *tokens), command.env)
    file = plan.launched / ENDPOINTS / "api"
    if role == "inference":  # needs no API to start
        fixed = plan.inference.port + index if plan.inference.port else free_port()
        port = int(env.get(PORT) or fixed)
        return roles.inference(
            plan,
            served,
            python,
            everywhere,
            port,
            index,
            Endpoints("", api_file=file),
            announced=host,
            memory_share=plan.inference.memory_share,
        )
    if role == "teacher":
        name, section = list(plan.teachers.items())[index]
        port = int(env.get(PORT) or section.port or free_port())
        announce(plan, host, port, of=f"teacher-{name}")
        share = section.memory_share
        return roles.teacher(
            plan, served, python, index, everywhere, port, announced=host, memory_share=share
        )
    at = endpoints(plan, file)
    if role == "environment":
        at = replace(at, teachers=published_teachers(plan, index))
        if roles.needs_servers(plan.environments[index]):
            at = replace(at, inference=listed_servers(plan, at))
        return roles.environment(plan, served, python, index, at, copy_of(env))
    run_id = env.get("SLURM_JOB_ID", plan.name)
    return roles.trainer(plan, python, at, meet, run_id, plan.trainer.gpus)


def copy_of(env: Mapping[str, str]) -> str:
    """The number or name of this process among the copies of an environment."""
    return next((env[name] for name in COPIES if name in env), "0")


def announce(plan: Plan, host: str, port: int, of: str = "api") -> None:
    write_whole(plan.launched / ENDPOINTS / of, f"http://{host}:{port}\n")


def endpoints(
    plan: Plan, file: Path, sleep: Callable[[float], None] = time.sleep
) -> Endpoints:
    """Return the address of the API, once it is published."""
    url = _await(plan, "the address of the API", partial(published_address, file), sleep)
    return Endpoints(url, api_file=file)


def published_address(file: Path) -> str | None:
    """Return the address in a file; None until a process has published its own."""
    if not file.exists():
        return None
    return file.read_text(encoding="utf-8").strip() or None


def published_teachers(
    plan: Plan, number: int, sleep: Callable[[float], None] = time.sleep
) -> dict[str, str]:
    """Return the addresses of an environment's teachers, once each has published its own.

    A script gets the file, which it reads again after a failure; a command gets the address.
    """
    wanted, addresses = plan.environments[number], {}
    for name in teachers_named(wanted):
        file = plan.launched / ENDPOINTS / f"teacher-{name}"
        what = f"the address of the teacher {name}"
        url = _await(plan, what, partial(published_address, file), sleep)
        addresses[name] = url if wanted.command is not None else file.as_uri()
    return addresses


def listed_servers(
    plan: Plan, at: Endpoints, sleep: Callable[[float], None] = time.sleep
) -> tuple[str, ...]:
    """Return the addresses of the servers, once the API lists as many as a run begins with."""
    wanted = plan.inference.min_ready or plan.inference.count
    with RolloutClient(at.api_address, token=token_of(plan)) as client:

        def read() -> tuple[str, ...] | None:
            listed = client.servers()
            urls = tuple(server.url for server in listed.servers) if listed else ()
            return urls if len(urls) >= wanted else None

        return _await(plan, "the inference servers in the directory", read, sleep)


def _await(
    plan: Plan, what: str, read: Callable[[], T | None], sleep: Callable[[float], None]
) -> T:
    until = time.monotonic() + plan.slurm.wait_s
    while (content := read()) is None:
        if time.monotonic() > until:
            raise EndpointTimeout(
                f"gave up after {plan.slurm.wait_s:.0f} s: waited for {what}"
            )
        sleep(POLL_S)
    return content
