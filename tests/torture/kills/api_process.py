"""run-api as a process that is killed and started again, and a plain HTTP caller for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

READY_WITHIN_S = 300.0
SERVE = "import runpy; runpy.run_module('atroposlib.cli.run_api', run_name='__main__')"
# A payload log whose segments hold some ten groups: they are sealed, moved and freed.
SMALL_SEGMENTS = (
    "import functools; from atroposlib.api.store import sqlite; "
    "sqlite.SqliteStore = functools.partial(sqlite.SqliteStore, segment_bytes=20_000)"
)
LOST = (OSError, http.client.HTTPException)  # a call whose reply never came


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Caller:
    """One kept connection; a call whose reply is lost raises one of ``LOST``.

    Of several ports (replicas) it takes the next one after each loss.
    """

    def __init__(self, *ports: int, timeout_s: float = READY_WITHIN_S) -> None:
        self._ports, self._timeout_s = cycle(ports), timeout_s
        self._connect()

    def _connect(self) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", next(self._ports), timeout=self._timeout_s
        )

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        return self.send(method, path, data, {"content-type": "application/json"})

    def send(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Any]:
        try:
            self._connection.request(method, path, data, headers if data is not None else {})
            reply = self._connection.getresponse()
            content = reply.read()
        except LOST:
            self.close()
            self._connect()
            raise
        return reply.status, json.loads(content) if content else None

    def hang_up_on(self, method: str, path: str, body: Any) -> None:
        """Send a call whole and leave without its reply."""
        data = json.dumps(body).encode()
        try:
            self._connection.request(method, path, data, {"content-type": "application/json"})
        finally:
            self.close()
            self._connect()

    def close(self) -> None:
        self._connection.close()


class ApiProcess:
    """The lives of one API: same port, same data directory. ``prelude`` runs before it."""

    def __init__(self, folder: Path, *options: str, prelude: str = "") -> None:
        self.port = free_port()
        self._log = folder / "api.log"
        self._command = [
            *(sys.executable, "-c", f"{prelude}\n{SERVE}", "--port", str(self.port)),
            *("--data-dir", str(folder / "data"), *options),
        ]
        self._environment = {
            k: v for k, v in os.environ.items() if not k.startswith("ATROPOS_")
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Seconds until it answered."""
        begun = time.monotonic()
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment
            )
        while time.monotonic() < begun + READY_WITHIN_S:
            if self._answers():
                return time.monotonic() - begun
            if self._process.poll() is not None:
                raise RuntimeError(f"run-api did not start:\n{self.log()[-4000:]}")
            time.sleep(0.005)
        raise RuntimeError(
            f"run-api was not ready in {READY_WITHIN_S} s:\n{self.log()[-4000:]}"
        )

    def _answers(self) -> bool:
        caller = Caller(self.port, timeout_s=READY_WITHIN_S)
        try:
            return caller.call("GET", "/health")[0] == 200
        except ConnectionRefusedError:
            return False
        except LOST:
            return False
        finally:
            caller.close()

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")
