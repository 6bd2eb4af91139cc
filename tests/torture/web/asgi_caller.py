"""Requests straight into an ASGI app: no sockets, any bytes, a client that may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

App = Callable[..., Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
ANSWER_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # with its query, as on the request line
    headers: Headers = ()
    body: bytes = b""

    def brief(self) -> str:
        """Enough to find it again, without a megabyte of body."""
        return f"{self.method} {self.path[:200]} {list(self.headers)[:20]} {self.body[:400]!r}"


@dataclass(slots=True)
class Reply:
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)


def scope_of(request: Request) -> dict[str, Any]:
    path, _, query = request.path.partition("?")
    return {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1"},
        **{"method": request.method, "scheme": "http", "root_path": ""},
        "path": unquote(path),
        "raw_path": path.encode("latin-1", "replace"),
        "query_string": query.encode("latin-1", "replace"),
        "headers": [(name.lower(), value) for name, value in request.headers],
        **{"client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80), "state": {}},
    }


async def ask(app: App, request: Request, *, leave_at_once: bool = False) -> Reply:
    """One request, whole; the client hangs up when it has the reply, or its first line."""
    reply, done = Reply(), asyncio.Event()
    pieces = [request.body]

    async def receive() -> dict[str, Any]:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(), "more_body": False}
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = list(message.get("headers", ()))
            if leave_at_once:
                done.set()
        elif message["type"] == "http.response.body":
            reply.body += message.get("body", b"")
            if not message.get("more_body"):
                done.set()

    call = app(scope_of(request), receive, send)
    await asyncio.wait_for(call, ANSWER_WITHIN_S)
    return reply
