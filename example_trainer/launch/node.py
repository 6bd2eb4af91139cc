"""Entry point of a cluster job: wait for the other addresses, then exec its role.

The job becomes the process of its role, so that SLURM's signals reach it.

Addresses travel as files in ``<out>/launch/endpoints``, which all nodes must see: ``api`` and
``inference-<i>``, each one line ``http://host:port``, replaced whole when a job starts anew.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from atroposlib.errors import AtroposError, ConfigError
from atroposlib.processes import free_port
from example_trainer.launch import roles
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.roles import Command, Endpoints
from example_trainer.launch.slurm import ENDPOINTS, TOKEN, TOKENS

POLL_S = 2.0


class EndpointTimeout(AtroposError):
    """A job of the run did not publish its address in time; the message names it."""


def load_plan(path: str | Path) -> Plan:
    """Raise ConfigError if the file is not a plan written by ``atropos-launch``."""
    try:
        return Plan(**json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not a launch plan: {error}") from error


def exec_role(plan: Plan, role: str, index: int, meet: str | None) -> None:
    """Replace this process with that of the role; does not return.

    Raises:
        ConfigError: the plan cannot be used.
        EndpointTimeout: see the class.
    """
    command = command_of(plan, role, index, meet, os.environ)
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **command.env}
    env["ATROPOS_API_TOKEN"] = (plan.launched / TOKEN).read_text(encoding="utf-8").strip()
    print(f"{role}: {' '.join(command.argv)}", flush=True)
    os.execvpe(command.argv[0], list(command.argv), env)


def command_of(
    plan: Plan, role: str, index: int, meet: str | None, env: Mapping[str, str]
) -> Command:
    """Return the command of a role on this node; a server first publishes its address."""
    python, (_, served) = plan.slurm.python, trainer_settings(plan)
    host = env.get("SLURMD_NODENAME") or socket.gethostname()
    if role == "api":
        port = plan.api.port or free_port()
        announce(plan, "api", host, port)
        found = roles.api(plan, python, "0.0.0.0", port)
        tokens = ("--tokens", str(plan.launched / TOKENS), "--insecure-plaintext")
        return Command((*found.argv, *tokens), found.env)
    if role == "inference":
        port = plan.inference.port + index if plan.inference.port else free_port()
        announce(plan, f"inference-{index}", host, port)
        return roles.inference(plan, served, python, "0.0.0.0", port, index, own_gpus=True)
    at = endpoints(plan)
    if role == "environment":
        return roles.environment(plan, served, python, index, at)
    return roles.trainer(plan, python, at, meet, env.get("SLURM_JOB_ID", plan.name))


def announce(plan: Plan, name: str, host: str, port: int) -> None:
    folder = plan.launched / ENDPOINTS
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".{name}.{host}.{os.getpid()}"
    scratch.write_text(f"http://{host}:{port}\n", encoding="utf-8")
    scratch.replace(folder / name)


def endpoints(plan: Plan, sleep: Callable[[float], None] = time.sleep) -> Endpoints:
    """Return the addresses of API and servers, once all of them are published."""
    names = ["api", *(f"inference-{i}" for i in range(plan.inference.count))]
    until = time.monotonic() + plan.slurm.wait_s
    while True:
        printed = {name: _read(plan.launched / ENDPOINTS / name) for name in names}
        silent = [name for name, url in printed.items() if not url]
        if not silent:
            servers = tuple(printed[name] for name in names[1:])
            return Endpoints(printed["api"], servers, plan.launched / ENDPOINTS / "api")
        if time.monotonic() > until:
            raise EndpointTimeout(
                f"{', '.join(silent)} did not start within {plan.slurm.wait_s:.0f} s"
            )
        sleep(POLL_S)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
