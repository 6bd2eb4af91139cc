"""The gate: first ASGI layer of every HTTP server of the package.

    uvicorn -> Gate (checks, record, errors) -> body, where a server bounds it -> app

The checks see the facts of a request in their order, before its body is read: each returns the
response that refuses it, or None. :func:`require_gate` keeps an app without a gate from being served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.errors import surviving

NO_REPLY = 499  # the client left, or the process stops, before a reply began
FACTS_KEY = "atropos.facts"  # a key of the ASGI scope


class RequestFacts:
    """The head of a request.

    Args:
        route_of: template of a method and a path, e.g. /batches/{no}/ack; None: unknown.
    """

    def __init__(self, scope: Scope, route_of: Callable[[str, str], str | None]) -> None:
        self.kind: str = scope["type"]  # http or websocket
        self.method: str = scope.get("method", "")  # empty for a WebSocket
        self.path: str = scope["path"]
        self.route = route_of(self.method, self.path)
        self.raw_headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        self.headers = dict(reversed(self.raw_headers))  # the first value of each name
        self.caller: Any = None  # see identify

    def identify(self, caller: Any) -> None:
        """Note who sent the request, as a check of tokens found out."""
        self.caller = caller

    def values_of(self, name: bytes) -> list[bytes]:
        """Every value of a header, for headers that must occur once."""
        return [value for header, value in self.raw_headers if header == name]


class Exchange:
    """The messages of a request: its status and bytes, and headers set in its response."""

    def __init__(
        self, receive: Receive, send: Send, headers: Callable[[], Mapping[str, str]]
    ) -> None:
        self._receive, self._send, self._headers = receive, send, headers
        self.began = time.monotonic()
        self.status: int | None = None  # it is None until a response begins
        self.bytes_in = self.bytes_out = 0
        self.endless_since: float | None = None  # an event stream begins once, then never ends

    def end_without_reply(self) -> None:
        """Record that the client had left."""
        self.status = NO_REPLY

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if headers := self._headers():
                MutableHeaders(scope=message).update(headers)
            content_type = dict(message["headers"]).get(b"content-type", b"")
            if content_type.startswith(b"text/event-stream"):
                self.endless_since = time.monotonic()
        self.bytes_out += len(message.get("body", b""))
        await self._send(message)


Check = Callable[[RequestFacts], "Response | None"]
Refuse = Callable[
    [int, str], Response
]  # status and detail -> response in the form of a server


class Gate:
    """ASGI app that checks and records requests to ``app``, and answers its errors.

    Args:
        checks: in the order in which they may refuse a request. A refused WebSocket is closed.
        route_of: see :class:`RequestFacts`; called once for each request.
        respond: response to an error of ``app``; None: a plain 500, and the error is raised.
        record: entered around each HTTP request, also around refused requests.
        headers: set in every response.
    """

    def __init__(
        self,
        app: ASGIApp,
        checks: Sequence[Check],
        *,
        route_of: Callable[[str, str], str | None] = lambda method, path: None,
        respond: Callable[[Exception, RequestFacts], Response | None] = lambda error, facts: (
            None
        ),
        record: Callable[
            [RequestFacts, Exchange], AbstractContextManager[None]
        ] = lambda facts, exchange: nullcontext(),
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.app, self._checks = app, checks
        self._route_of, self._respond = route_of, respond
        self._record, self._headers = record, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        scope[FACTS_KEY] = facts = RequestFacts(scope, self._route_of)
        refusals = (response for check in self._checks if (response := check(facts)))
        if facts.kind == "websocket":
            if next(refusals, None) is None:
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        exchange = Exchange(receive, send, self._headers)
        errors: list[Exception] = []
        with self._record(facts, exchange):
            with surviving(errors.append):
                app = next(refusals, None) or self.app
                await app(scope, exchange.receive, exchange.send)
            for error in errors:
                await self._answer(error, scope, exchange)

    async def _answer(self, error: Exception, scope: Scope, exchange: Exchange) -> None:
        """Send the response to an error, or 500 and raise it; nothing once a reply began."""
        begun = exchange.status is not None
        response = None if begun else self._respond(error, scope[FACTS_KEY])
        if not begun:
            reply = response or PlainTextResponse("Internal Server Error", 500)
            await reply(scope, exchange.receive, exchange.send)
        if response is not None:
            return
        if exchange.status == 500 and isinstance(error, ConnectionError):
            exchange.end_without_reply()
        raise error


def require_gate(app: ASGIApp) -> ASGIApp:
    """``app``, which has a gate as its first layer.

    Raises:
        TypeError: it has none, so a web page could call it.
    """
    first = app.middleware_stack if isinstance(app, Starlette) else app
    if not isinstance(first, Gate):
        raise TypeError(
            f"{type(app).__name__} has no gate: app.middleware_stack = "
            "Gate(app.build_middleware_stack(), page_checks(refuse))"
        )
    return app
