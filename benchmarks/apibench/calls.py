"""HTTP clients that cost little, so that figures are of the server."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from apibench.payloads import FRAMES_TYPE, JSON_TYPE, Body

TIMEOUT_S = 300.0
_READ = 1 << 20
_PROBE_S = 60.0  # limit of a call, even on the naive server
_PAUSE_S = 0.002


class Refused(RuntimeError):
    """The server answered with a status that makes the measurement void."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes | memoryview
    seconds: float  # time from sending the request to the last byte

    def json(self) -> Any:
        return json.loads(bytes(self.body))

    def ok(self) -> Reply:
        """The reply, if its status is 200.

        Raises:
            Refused: the status is not 200.
        """
        if self.status != 200:
            raise Refused(f"{self.status}: {bytes(self.body[:300])!r}")
        return self


class Client:
    """A blocking keep-alive connection. Not for several threads at once."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def call(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        room: bytearray | None = None,
    ) -> Reply:
        """``room`` takes the body instead of new memory, which would have to be paged in.

        Raises:
            Refused: the reply is larger than ``room``.
            OSError: the connection broke.
        """
        began = time.perf_counter()
        self._connection.request(
            method, path, data, {"accept-encoding": "identity", **(headers or {})}
        )
        got = self._connection.getresponse()
        body = got.read() if room is None else _into(room, got)
        seconds = time.perf_counter() - began
        names = {name.lower(): value for name, value in got.getheaders()}
        return Reply(got.status, names, body, seconds)

    def post(self, path: str, value: object) -> Any:
        """Send JSON, get JSON."""
        data = json.dumps(value).encode()
        return self.call("POST", path, data, {"content-type": "application/json"}).ok().json()

    def send(self, path: str, body: Body) -> Reply:
        return self.call("POST", path, body.data, body.headers).ok()

    def claim(self, room: bytearray, accept: str = FRAMES_TYPE, **wanted: object) -> Reply:
        """POST /batches/claim, answered in ``accept``."""
        headers = {"accept": accept, "content-type": "application/json"}
        data = json.dumps(wanted).encode()
        return self.call("POST", "/batches/claim", data, headers, room).ok()

    def get(self, path: str) -> Any:
        return self.call("GET", path).ok().json()

    def close(self) -> None:
        self._connection.close()


def _into(room: bytearray, got: http.client.HTTPResponse) -> memoryview:
    view, filled = memoryview(room), 0
    while count := got.readinto(view[filled : filled + _READ]):
        filled += count
        if filled == len(room):
            raise Refused("the reply is larger than the room made for it")
    return view[:filled]


def send_all(port: int, path: str, bodies: Sequence[Body], count: int, clients: int) -> None:
    """Send ``count`` posts by ``clients`` threads, the bodies in turn.

    Raises:
        Refused: a post was refused; the posts after it are sent all the same.
    """
    turns = iter(range(count))
    failures: list[Exception] = []

    def work() -> None:
        client = Client(port)
        try:
            for turn in turns:
                client.send(path, bodies[turn % len(bodies)])
        except (Refused, OSError, http.client.HTTPException) as error:
            failures.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise Refused(str(failures[0]))


class Prober:
    """A process that asks ``path`` all the time, so that a busy client here is not
    mistaken for a blocked server. GET, or POST with the JSON text ``data``."""

    def __init__(
        self,
        port: int,
        path: str = "/status",
        data: bytes | None = None,
        pause_s: float = _PAUSE_S,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        asked = (port, path, data, pause_s, theirs)
        self._process = context.Process(target=_probe, args=asked, daemon=True)
        self.samples: list[tuple[float, float]] = []  # (begin, seconds)

    def __enter__(self) -> Prober:
        self._process.start()
        self._receive()
        return self

    def __exit__(self, *raised: object) -> None:
        self._pipe.send("stop")
        self.samples = self._receive()
        self._process.join(10)

    def _receive(self) -> Any:
        """Next message of the process.

        Raises:
            Refused: no message came, because its calls fail or it never started.
        """
        if not self._pipe.poll(_PROBE_S):
            self._process.kill()
            raise Refused("the process that asks all the time fell silent")
        return self._pipe.recv()

    def during(self, begin: float, end: float) -> list[float]:
        """Seconds of each call that was under way at any time between the two."""
        return [s for at, s in self.samples if at + s >= begin and at <= end]


def _probe(port: int, path: str, data: bytes | None, pause_s: float, pipe: Any) -> None:
    client = Client(port)
    method, headers = "GET" if data is None else "POST", {"content-type": JSON_TYPE}
    ask = partial(client.call, method, path, data, headers)
    ask().ok()
    pipe.send("ready")
    samples = []
    while not pipe.poll():
        began = time.perf_counter()
        samples.append((began, ask().ok().seconds))
        time.sleep(pause_s)
    client.close()
    pipe.send(samples)
