"""The real application behind transports that lose replies or hide routes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.client.announce import send_heartbeats
from atroposlib.wire import Registration, ScoredData
from tests.serving import WAIT_S, served

URL = "http://127.0.0.1:9"  # nothing listens on the discard port


class InProcess(httpx.BaseTransport):
    """Carries the requests of a blocking client to an app on a loop in another thread."""

    def __init__(self, app, portal: BlockingPortal) -> None:
        self._app = app
        self._portal = portal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        return self._portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        transport = httpx.ASGITransport(self._app)
        response = await transport.handle_async_request(request)
        body = await response.aread()
        return httpx.Response(response.status_code, headers=response.headers, content=body)


class Lossy(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Delivers the request, and loses the reply of the first ``times`` to ``path``."""

    def __init__(self, inner, path: str, times: int = 1) -> None:
        self._inner = inner
        self._path = path
        self.left = times

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        self._lose(request)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        self._lose(request)
        return response

    def _lose(self, request: httpx.Request) -> None:
        if self.left and request.url.path == self._path:
            self.left -= 1
            raise httpx.RemoteProtocolError("peer closed connection", request=request)


class Older(httpx.AsyncBaseTransport):
    """An older API without ``paths``; ``asked`` lists the requested paths."""

    def __init__(self, inner, *paths: str) -> None:
        self._inner = inner
        self._paths = paths
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path in self._paths:
            return httpx.Response(404, json={"detail": "Not Found"})
        return await self._inner.handle_async_request(request)


class Clock:
    """Clock of the API, advanced by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def in_process(**options) -> Iterator[InProcess]:
    app = create_app(open_store("memory"), **options)
    with start_blocking_portal() as portal:
        yield InProcess(app, portal)
        app.state.service.close()


@contextmanager
def served_api() -> Iterator[str]:
    """The address of an API behind a real socket."""
    with served(create_app(open_store("memory"))) as url:
        yield url


@contextmanager
def announced(api: str, name: str, url: str) -> Iterator[None]:
    """The server at ``url`` sends heartbeats, from a thread."""
    stop = threading.Event()
    thread = threading.Thread(
        target=send_heartbeats, args=(api, name, url, stop, lambda: True)
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT_S)


def post(transport: httpx.BaseTransport, *groups: ScoredData) -> None:
    with httpx.Client(transport=transport, base_url=URL) as http:
        body = [{"tokens": g.tokens, "masks": g.masks, "scores": g.scores} for g in groups]
        assert http.post("/scored_data_list", json=body).status_code == 200


def registration(batch_size: int = 2, **more) -> Registration:
    fields = {
        "wandb_group": "g",
        "wandb_project": "p",
        "batch_size": batch_size,
        "max_token_len": 64,
        "checkpoint_dir": "",
        "save_checkpoint_interval": 1,
        "starting_step": 0,
        "num_steps": 4,
    }
    return Registration(**fields | more)


def group(mark: int = 1, rows: int = 2, **more) -> ScoredData:
    fields = {
        "tokens": [[mark, 7]] * rows,
        "masks": [[-100, 7]] * rows,
        "scores": [0.5, 1.0][:rows],
    }
    return ScoredData(**fields | more)
