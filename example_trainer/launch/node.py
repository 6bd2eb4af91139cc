"""Entry point of a cluster job: wait for the address of the API, then become the process of its role.

Two jobs start it as a child, which ends with the job:

    any role, on SLURM           it also ends if SLURM has started the job again elsewhere
    the trainer, on Kubernetes   its status 0 counts with its record of the end only

The address of the API travels as the file ``<out>/launch/endpoints/api``, which all nodes must
see: a line ``http://host:port``, replaced whole when its job starts anew. Servers announce
themselves to the API, which lists them.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from atroposlib.utils.command.signals import on_signals
from atroposlib.utils.io import write_whole
from example_trainer.launch import roles
from example_trainer.launch.k8s import AGAIN
from example_trainer.launch.local import GRACE_S, RestartPolicy
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.roles import Command, Endpoints, gpus_of
from example_trainer.launch.slurm import ENDPOINTS, TOKEN, TOKENS

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
T = TypeVar("T")
logger = logging.getLogger(__name__)
POLL_S = 2.0
HELD_S = 10.0  # between two questions to SLURM
RECORD_S = 60.0  # wait for the record from another node after the ranks of this node ended
COPY = "ATROPOS_COPY"  # number of an environment of which the plan has several
COPIES = (COPY, "SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")
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
    """Run the role as a child; its status, 75 if SLURM has given its job to another node.

    Raises: as :func:`exec_role`.
    """
    command = command_of(plan, role, index, meet, os.environ)
    print(f"{role}: {' '.join(command.argv)}", flush=True)
    env = {**os.environ, **_given_variables(plan, command)}
    child = subprocess.Popen(command.argv, env=env, preexec_fn=_end_with_parent)
    # SLURM signals every process of a step: passed on, a signal would count twice.
    passed_on = bool if "SLURM_JOB_ID" in os.environ else child.send_signal
    on_signals(passed_on, signal.SIGTERM, signal.SIGINT)
    is_lost = lost_job(os.environ)
    while not is_lost():
        try:
            status = child.wait(HELD_S)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            continue
    logger.error(f"SLURM has started this job again: the {role} of this node ends")
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return AGAIN


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent dies, by SIGKILL too (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def holds_job(env: Mapping[str, str]) -> bool:
    """Whether SLURM still runs this job here, as far as its controller answers.

    A node that SLURM has lost (a hung slurmd) keeps its processes, and thereby the lock of the
    queue and the GPUs, while the job starts again elsewhere.
    """
    words = ("scontrol", "--oneliner", "show", "job", env["SLURM_JOB_ID"])
    try:
        shown = subprocess.run(words, capture_output=True, text=True, timeout=HELD_S)
    except (OSError, subprocess.TimeoutExpired):
        return True
    match = re.search(r" Restarts=(\d+) ", shown.stdout)
    return match is None or int(match[1]) <= int(env.get("SLURM_RESTART_COUNT") or 0)


def lost_job(env: Mapping[str, str]) -> Callable[[], bool]:
    """A function that asks SLURM at most every ``HELD_S`` whether the job runs elsewhere."""
    asked_at = time.monotonic()

    def is_lost() -> bool:
        nonlocal asked_at
        if "SLURM_JOB_ID" not in env or time.monotonic() < asked_at + HELD_S:
            return False
        asked_at = time.monotonic()
        return not holds_job(env)

    return is_lost


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
    token = (plan.files / TOKEN).read_text(encoding="utf-8").strip()
    return {"PYTHONUNBUFFERED": "1", **command.env, "ATROPOS_API_TOKEN": token}


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
    stop = StopRequest()
    stop.listen()
    logs = plan.directory / "logs"
    print(f"inference: {count} servers, logs {logs}/inference-*.log", flush=True)
    policy = RestartPolicy(0, plan.restarts, plan.restart_delay_s)
    with Children(logs, stop) as children:
        run = Supervisor(specs, children, stop, policy)
        run.start_workers()
        try:
            run.watch(lost_job(os.environ), what="the servers")
            logger.error("SLURM has started this job again: the servers of this node end")
            return AGAIN
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
    at = endpoints(plan, file)
    if role == "environment":
        if roles.needs_servers(plan.environments[index]):
            at = replace(at, inference=listed_servers(plan, at))
        copy = next((env[name] for name in COPIES if name in env), "0")
        return roles.environment(plan, served, python, index, at, copy)
    run_id = env.get("SLURM_JOB_ID", plan.name)
    return roles.trainer(plan, python, at, meet, run_id, plan.trainer.gpus)


def announce(plan: Plan, host: str, port: int) -> None:
    write_whole(plan.launched / ENDPOINTS / "api", f"http://{host}:{port}\n")


def endpoints(
    plan: Plan, file: Path, sleep: Callable[[float], None] = time.sleep
) -> Endpoints:
    """Return the address of the API, once it is published."""

    def read() -> Endpoints | None:
        url = file.read_text(encoding="utf-8").strip() if file.exists() else ""
        return Endpoints(url, api_file=file) if url else None

    return _await_file(plan, "the address of the API", read, sleep)


def listed_servers(
    plan: Plan, at: Endpoints, sleep: Callable[[float], None] = time.sleep
) -> tuple[str, ...]:
    """Return the addresses of the servers, once the API lists as many as a run begins with."""
    token = (plan.files / TOKEN).read_text(encoding="utf-8").strip()
    with RolloutClient(at.api_address, token=token) as client:

        def read() -> tuple[str, ...] | None:
            listed = client.servers()
            urls = tuple(server.url for server in listed.servers) if listed else ()
            return (
                urls
                if len(urls) >= (plan.inference.min_ready or plan.inference.count)
                else None
            )

        return _await_file(plan, "the inference servers in the directory", read, sleep)


def _await_file(
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
