"""Links between clients and the API: delay, loss, duplicates, cuts and slow bodies.

client --> Link --(what the schedule does to it)--> ApiHost.serve --> app

The clients are the real ones but for the connection pool of httpx, whose place a link takes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import httpx

from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.client.api_calls import ApiCall
from tests.simulator.host import ApiHost, Exchange
from tests.simulator.loop import Blocking
from tests.torture.web.asgi_caller import Reply, Request

URL = "http://127.0.0.1:8000"
LATE_S = 30.0  # of a duplicate, at most
ALWAYS = [(b"host", b"127.0.0.1:8000"), (b"accept-encoding", b"gzip, deflate")]
T = TypeVar("T")


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
    host: ApiHost
    rng: random.Random
    note: Callable[[str, str], None]
    weather: Weather = field(default_factory=Weather)

    async def request(
        self, method: str, url: str, content: bytes, headers: dict[str, str], timeout: float
    ) -> httpx.Response:
        """The response, or the error of httpx."""
        path, given = url.removeprefix(URL), [*ALWAYS]
        given += [(name.encode(), value.encode()) for name, value in headers.items()]
        given.append((b"content-length", b"%d" % len(content)))
        pause_s = self.weather.body_pause_s
        pauses_s = [self.rng.random() * pause_s for _ in range(4)] if pause_s else []
        sent = Exchange(Request(method, path, given, content), pauses_s)
        try:
            with anyio.fail_after(timeout):
                reply = await self._exchange(sent)
        except TimeoutError:
            self.note(self.name, f"{path} timed out")
            raise httpx.ReadTimeout("timed out", request=httpx.Request(method, url)) from None
        except httpx.RequestError as error:
            error.request = httpx.Request(method, url)
            self.note(self.name, f"{path} {error}")
            raise
        finally:
            if not sent.over.is_set():
                asyncio.get_running_loop().call_later(self._delay(), sent.hang_up)
        self.note(self.name, f"{path} {reply.status} {len(reply.body)}")
        return httpx.Response(reply.status, headers=reply.headers, content=bytes(reply.body))

    async def _exchange(self, sent: Exchange) -> Reply:
        await self._pass()
        if not self.host.up:
            raise httpx.ConnectError("connection refused")
        if self.rng.random() < self.weather.repeated:
            asyncio.get_running_loop().create_task(self._again(sent.asked))
        # The API goes on when its client has given up.
        reply = await asyncio.shield(self.host.serve(sent))
        await self._pass()
        return reply

    async def _pass(self) -> None:
        """One direction: through, lost in silence, or reset."""
        await asyncio.sleep(self._delay())
        if self.weather.cut:
            await asyncio.get_running_loop().create_future()
        if self.rng.random() < self.weather.lost:
            if self.rng.random() < 0.5:
                await asyncio.get_running_loop().create_future()
            raise httpx.ReadError("connection reset")

    async def _again(self, asked: Request) -> None:
        await asyncio.sleep(self.rng.random() * LATE_S)
        if self.host.up:
            again = Exchange(asked, [])  # a proxy keeps its connection for a while
            late_s = self.rng.random() * LATE_S
            asyncio.get_running_loop().call_later(late_s, again.hang_up)
            try:
                reply = await self.host.serve(again)
                self.note(self.name, f"{asked.path} repeated late: {reply.status}")
            except httpx.RequestError:
                pass

    def _delay(self) -> float:
        return self.rng.random() * self.weather.delay_s


class EnvClient(AsyncRolloutClient):
    """That of environments, over a link."""

    def __init__(self, link: Link, **more: Any) -> None:
        super().__init__(URL, token="", transport=httpx.AsyncBaseTransport(), **more)
        self._link = link

    async def _request(self, call: ApiCall[T]) -> httpx.Response:
        return await self._link.request(**_wanted(self._settings.arguments(call)))


class TrainerClient(RolloutClient):
    """That of trainers, which blocks its program."""

    def __init__(self, link: Link, program: Blocking, **more: Any) -> None:
        super().__init__(URL, token="", transport=httpx.BaseTransport(), **more)
        self._link, self._program = link, program

    def _request(self, call: ApiCall[T]) -> httpx.Response:
        wanted = _wanted(self._settings.arguments(call))
        response: httpx.Response = self._program.wait(self._link.request(**wanted))
        return response


def _wanted(arguments: dict[str, Any]) -> dict[str, Any]:
    wanted = {name: one for name, one in arguments.items() if name != "follow_redirects"}
    wanted["timeout"] = httpx.Timeout(arguments["timeout"]).read
    return wanted
