"""Links between clients and the API: delay, loss, duplicates, cuts and slow bodies.

client --transport--> Link --(what the schedule does to it)--> ApiHost.serve --> app
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from tests.simulator.loop import Blocking
from tests.torture.web.asgi_caller import Reply, Request

LATE_S = 30.0  # of a duplicate, at most
NOT_ROUTED = "no route to host"


class Host(Protocol):
    """The machine of the API."""

    up: bool

    def serve(
        self, request: Request, gone: asyncio.Event, pauses_s: list[float]
    ) -> Coroutine[Any, Any, Reply]: ...


@dataclass
class Weather:
    """What a link does now; the schedule changes it."""

    delay_s: float = 0.02  # of each direction, at most
    lost: float = 0.0  # share of requests and of answers
    repeated: float = 0.0  # share of requests that arrive once more, later
    body_pause_s: float = 0.0  # between the pieces of a body, at most
    cut: bool = False


@dataclass
class Link:
    """The network of one client."""

    name: str
    host: Host
    rng: random.Random
    note: Callable[[str, str], None]
    weather: Weather = field(default_factory=Weather)

    async def exchange(self, request: httpx.Request) -> httpx.Response:
        """The response, or the error of httpx."""
        body = request.read()
        asked = Request(
            request.method, request.url.raw_path.decode(), tuple(request.headers.raw), body
        )
        gone = asyncio.Event()
        timeout_s = request.extensions["timeout"]["read"]
        try:
            reply = await asyncio.wait_for(self._exchange(asked, gone), timeout_s)
        except asyncio.TimeoutError:
            self.note(self.name, f"{asked.path} timed out")
            raise httpx.ReadTimeout("timed out", request=request) from None
        except httpx.RequestError as error:
            error.request = request
            self.note(self.name, f"{asked.path} {error}")
            raise
        finally:
            asyncio.get_running_loop().call_later(self._delay(), gone.set)
        self.note(self.name, f"{asked.path} {reply.status} {len(reply.body)}")
        return httpx.Response(
            reply.status, headers=reply.headers, content=bytes(reply.body), request=request
        )

    async def _exchange(self, asked: Request, gone: asyncio.Event) -> Reply:
        await asyncio.sleep(self._delay())
        await self._pass()
        if not self.host.up:
            raise httpx.ConnectError("connection refused")
        pauses_s: list[float] = []
        if self.weather.body_pause_s:
            pauses_s = [self.rng.random() * self.weather.body_pause_s for _ in range(4)]
        if self.rng.random() < self.weather.repeated:
            asyncio.get_running_loop().create_task(self._again(asked))
        # Not awaited itself: the API goes on when its client has given up.
        call = asyncio.ensure_future(self.host.serve(asked, gone, pauses_s))
        reply = await asyncio.shield(call)
        await asyncio.sleep(self._delay())
        await self._pass()
        return reply

    async def _pass(self) -> None:
        """One direction: through, lost in silence, or reset."""
        if self.weather.cut:
            await asyncio.get_running_loop().create_future()
        if self.rng.random() < self.weather.lost:
            if self.rng.random() < 0.5:
                await asyncio.get_running_loop().create_future()
            raise httpx.ReadError("connection reset")

    async def _again(self, asked: Request) -> None:
        await asyncio.sleep(self.rng.random() * LATE_S)
        if self.host.up:
            gone = asyncio.Event()  # a proxy keeps its connection for a while
            asyncio.get_running_loop().call_later(self.rng.random() * LATE_S, gone.set)
            try:
                reply = await self.host.serve(asked, gone, [])
                self.note(self.name, f"{asked.path} repeated late: {reply.status}")
            except httpx.RequestError:
                pass

    def _delay(self) -> float:
        return self.rng.random() * self.weather.delay_s


class AsyncTransport(httpx.AsyncBaseTransport):
    """For environments."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._link.exchange(request)


class BlockingTransport(httpx.BaseTransport):
    """For trainers, whose client blocks."""

    def __init__(self, link: Link, program: Blocking) -> None:
        self._link, self._program = link, program

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response: httpx.Response = self._program.wait(self._link.exchange(request))
        return response
