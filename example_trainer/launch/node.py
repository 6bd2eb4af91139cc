"""Entry point of a cluster job: wait for the address of the API, then exec its role.

The job becomes the process of its role, so that SLURM's signals reach it; only of several
inference servers it starts each as a child.

The address of the API travels as the file ``<out>/launch/endpoints/api``, which all nodes must
see: one line ``http://host:port``, replaced whole when its job starts anew. Servers announce
themselves to the API, which lists them.
"""

from __future__ import annotations

import json
import os
import socket
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
from example_trainer.launch import roles
from example_trainer.launch.local import GRACE_S, RestartPolicy
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.roles import Command, Endpoints, gpus_of
from example_trainer.launch.slurm import ENDPOINTS, TOKEN, TOKENS

T = TypeVar("T")
POLL_S = 2.0
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
    env = {**os.environ, **_given(plan, command)}
    os.execvpe(command.argv[0], list(command.argv), env)


def _given(plan: Plan, command: Command) -> dict[str, str]:
    token = (plan.files / TOKEN).read_text(encoding="utf-8").strip()
    return {"PYTHONUNBUFFERED": "1", **command.env, "ATROPOS_API_TOKEN": token}


def run_servers(plan: Plan, first: int, count: int) -> int:
    """Run inference servers of one job until a signal; one that dies is started again.

    Raises:
        ConfigError: the plan cannot be used.
        RunFailed: one died more than ``restarts`` times.
    """
    specs, visible = [], os.environ.get("CUDA_VISIBLE_DEVICES")
    for place in range(count):
        index = first + place
        command = command_of(plan, "inference", index, None, os.environ)
        env = {**gpus_at(plan, place, visible), **_given(plan, command)}
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
            run.watch(lambda: False, what="the servers")
        except Interrupted as interrupted:
            print(f"inference: {interrupted}, the servers end", flush=True)
            children.end(list(run.specs), GRACE_S)
    return 0


def gpus_at(plan: Plan, place: int, visible: str | None) -> dict[str, str]:
    """Return the variable that names the GPUs of one of a job's servers, if it uses some.

    Args:
        visible: the GPUs of the job, by commas; None: it has those from 0 on.
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
    if role == "api":
        port = plan.api.port or free_port()
        announce(plan, host, port)
        found = roles.api(plan, python, "0.0.0.0", port)
        tokens = ("--tokens", str(plan.files / TOKENS), "--insecure-plaintext")
        return Command((*found.argv, *tokens), found.env)
    file = plan.launched / ENDPOINTS / "api"
    if role == "inference":  # needs no API to start
        port = plan.inference.port + index if plan.inference.port else free_port()
        return roles.inference(
            *(plan, served, python, "0.0.0.0", port, index, Endpoints("", api_file=file)),
            announced=host,
            own_gpus=True,
        )
    at = endpoints(plan, file)
    if role == "environment":
        if roles.needs_servers(plan.environments[index]):
            at = replace(at, inference=listed_servers(plan, at))
        return roles.environment(plan, served, python, index, at)
    return roles.trainer(plan, python, at, meet, env.get("SLURM_JOB_ID", plan.name))


def announce(plan: Plan, host: str, port: int) -> None:
    folder = plan.launched / ENDPOINTS
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".api.{host}.{os.getpid()}"
    scratch.write_text(f"http://{host}:{port}\n", encoding="utf-8")
    scratch.replace(folder / "api")


def endpoints(
    plan: Plan, file: Path, sleep: Callable[[float], None] = time.sleep
) -> Endpoints:
    """Return the address of the API, once it is published."""

    def read() -> Endpoints | None:
        url = file.read_text(encoding="utf-8").strip() if file.exists() else ""
        return Endpoints(url, api_file=file) if url else None

    return _awaited(plan, "the address of the API", read, sleep)


def listed_servers(
    plan: Plan, at: Endpoints, sleep: Callable[[float], None] = time.sleep
) -> tuple[str, ...]:
    """Return the addresses of the servers, once the API lists as many as a run begins with."""
    token = (plan.files / TOKEN).read_text(encoding="utf-8").strip()
    with RolloutClient(at.api_address, token=token) as client:

        def read() -> tuple[str, ...] | None:
            listed = client.servers()
            urls = tuple(one.url for one in listed.servers) if listed else ()
            return (
                urls
                if len(urls) >= (plan.inference.min_ready or plan.inference.count)
                else None
            )

        return _awaited(plan, "the inference servers in the directory", read, sleep)


def _awaited(
    plan: Plan, what: str, read: Callable[[], T | None], sleep: Callable[[float], None]
) -> T:
    until = time.monotonic() + plan.slurm.wait_s
    while (found := read()) is None:
        if time.monotonic() > until:
            raise EndpointTimeout(
                f"gave up after {plan.slurm.wait_s:.0f} s: waited for {what}"
            )
        sleep(POLL_S)
    return found
