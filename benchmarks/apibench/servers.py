"""Servers under load, each a separate process on a free port."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from apibench.calls import Client, Refused
from apibench.processes import Usage, peak_rss_bytes, usage
from atroposlib.processes import free_port

HERE = Path(__file__).resolve().parents[1]
_START_S = 60.0
_STOP_S = 15.0
_JOINING = 32  # environments at a time
_PORT, _DATA = "{port}", "{data}"
_QUIET = ("--no-access-log", "--log-level", "warning")
_UVICORN = ("-m", "uvicorn", "--app-dir", str(HERE), *_QUIET, "--port", _PORT)


@dataclass(frozen=True)
class Kind:
    """Command of a server: arguments of this Python, which contain {port} and {data}."""

    name: str
    arguments: Sequence[str]
    source: Path | None = None  # checkout whose atroposlib runs; None: the installed package
    health: str = "/info"  # route that answers 200 once it is up


def ours(store: str = "sqlite", source: Path | None = None) -> Kind:
    """``run-api`` as users start it, with durable writes unless ``store`` is memory."""
    command = ("-m", "atroposlib.cli.run_api", "--port", _PORT, "--store", store)
    return Kind("ours", (*command, "--data-dir", _DATA), source)


NAIVE = Kind("naive", (*_UVICORN, "naive_api:app"))
LIMIT = Kind("machine", (*_UVICORN, "apibench.limit_app:app"))


@dataclass
class Server:
    """A context: started on entry, stopped on exit, its data folder removed."""

    kind: Kind
    scratch: Path | None = None  # parent of data folders; its disk sets the cost of fsync
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _data: str = ""
    generation: int = 0  # trainer registered by begin; 0: none is registered
    _clients: list[Client] = field(default_factory=list)

    def __enter__(self) -> Server:
        self._data = tempfile.mkdtemp(prefix="apibench-", dir=self.scratch)
        self.port = free_port()
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        filled = {_PORT: str(self.port), _DATA: str(Path(self._data) / "store")}
        arguments = [filled.get(each, each) for each in self.kind.arguments]
        environment = dict(os.environ)
        if self.kind.source is not None:
            environment["PYTHONPATH"] = str(self.kind.source)
        with open(Path(self._data) / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._data,
            )
        self._wait_until_up()

    def restart(self) -> float:
        """Kill with SIGKILL, start on the same data; return the seconds until it answers."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        began = time.perf_counter()
        self._start()
        return time.perf_counter() - began

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            print(self.log(), file=sys.stderr)
        self.stop()

    def log(self) -> str:
        """The last lines the server wrote."""
        text = (Path(self._data) / "server.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-20:])

    def _wait_until_up(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            client = Client(self.port)
            try:
                client.call("GET", self.kind.health).ok()
                return
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
            finally:
                client.close()
        raise Refused(f"{self.kind.name} did not come up:\n{self.log()}")

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
        shutil.rmtree(self._data, ignore_errors=True)

    def usage(self) -> Usage:
        assert self._process is not None
        return usage(self._process.pid)

    def peak_rss_bytes(self) -> int:
        assert self._process is not None
        return peak_rss_bytes(self._process.pid)

    def client(self) -> Client:
        """A connection that is closed with the server."""
        client = Client(self.port)
        self._clients.append(client)
        return client

    def begin(self, batch_size: int, envs: Sequence[dict[str, Any]]) -> list[int]:
        """Register a trainer, open the run, register the environments; return their ids."""
        client = self.client()
        registered = client.post("/register", TRAINER | {"batch_size": batch_size})
        self.generation = registered.get("generation", 0)
        client.get("/batch")
        clients = [client, *(self.client() for _ in range(min(len(envs) // 32, _JOINING)))]
        with ThreadPoolExecutor(len(clients)) as pool:  # the server saves joins together
            parts = [envs[i :: len(clients)] for i in range(len(clients))]
            joined = list(pool.map(_join, clients, parts))
        return [joined[i % len(clients)][i // len(clients)] for i in range(len(envs))]


def _join(client: Client, envs: Sequence[dict[str, Any]]) -> list[int]:
    return [client.post("/register-env", env)["env_id"] for env in envs]


TRAINER = {
    "wandb_group": "bench",
    "wandb_project": "bench",
    "batch_size": 64,
    "max_token_len": 65536,
    "checkpoint_dir": "bench",
    "save_checkpoint_interval": 100,
    "starting_step": 0,
    "num_steps": 1_000_000,
}


def env(group_size: int, weight: float = 1.0, minimum: float | None = None) -> dict[str, Any]:
    """The body of POST /register-env."""
    return {
        "max_token_length": 65536,
        "desired_name": "env",
        "weight": weight,
        "group_size": group_size,
        "min_batch_allocation": minimum,
    }
