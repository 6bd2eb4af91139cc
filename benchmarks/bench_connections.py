"""CPU of a request from an environment to its inference server, by the requests in flight.

    python benchmarks/bench_connections.py [--in-flight 8 32 128 512] [--rounds 4]

A server answers each request after 0.2 s. Compared are the pools of HttpClient, which every backend
uses, and one pool of httpx with room for all requests. The first round, which opens connections, is
not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from atroposlib.generation.engines.http import HttpClient

DELAY_S = 0.2
BODY = {"prompt": list(range(100)), "max_tokens": 1}
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
Send = Callable[[str], Awaitable[Any]]


class DelayedReply(asyncio.Protocol):
    """A server in the same process, at next to no CPU of its own."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.received = transport, b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.received.endswith(b"}"):  # the end of the only body
            self.received = b""
            asyncio.get_running_loop().call_later(DELAY_S, self.transport.write, REPLY)


async def milliseconds(
    send: Send, url: str, in_flight: int, rounds: int
) -> tuple[float, float]:
    """CPU and wall time of a request and of a round, in ms."""

    async def requests(count: int) -> None:
        for _ in range(count):
            await send(url)

    await asyncio.gather(*(requests(1) for _ in range(in_flight)))
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(requests(rounds) for _ in range(in_flight)))
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    return cpu_s / (in_flight * rounds) * 1e3, wall_s / rounds * 1e3


async def compare(in_flight: int, rounds: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(DelayedReply, "127.0.0.1", 0, backlog=2048)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/completions"
    ours = HttpClient(timeout_s=600, api_key=None)
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    async with httpx.AsyncClient(limits=limits, timeout=600) as single:
        small = await milliseconds(lambda u: ours.post(u, BODY), url, in_flight, rounds)
        large = await milliseconds(lambda u: single.post(u, json=BODY), url, in_flight, rounds)
    await ours.aclose()
    server.close()
    print(
        f"{in_flight:4} in flight: {small[0]:.2f} ms of CPU per request, {large[0]:.2f} in one pool "
        f"({large[0] / small[0]:.1f}x); a round {small[1]:.0f} ms, {large[1]:.0f} in one pool"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of a request by the requests in flight")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[8, 32, 128, 512])
    parser.add_argument(
        "--rounds", type=int, default=4, help="requests of each, one after another"
    )
    options = parser.parse_args()
    for in_flight in options.in_flight:
        asyncio.run(compare(in_flight, options.rounds))


if __name__ == "__main__":
    main()
