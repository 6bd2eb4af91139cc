"""The gate: first ASGI layer of every HTTP server of the package.

    uvicorn -> Gate (checks, times, log, errors) -> body, where a server bounds it -> app

One :class:`RequestFacts` is made for each request. The checks see it in their order, before the body
is read: each returns the response that refuses the request, or None. A refused WebSocket is closed.
:func:`require_gate` rejects an app without a gate, so none is served by accident.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.errors import surviving

NO_REPLY = 499  # the client left, or the process stops, before a reply began
FACTS_KEY = "atropos.facts"  # of the ASGI scope
_POLICY_VIOLATION = 1008  # close code of a refused WebSocket

RouteOf = Callable[[str, str], "str | None"]


def no_route(method: str, path: str) -> None:
    """For servers without a table of routes."""


@dataclass(slots=True)
class RequestFacts:
    """The head of one request. A check of tokens sets ``caller``."""

    kind: str  # "http" or "websocket"
    method: str  # empty for a WebSocket
    path: str
    route: (
        str | None
    )  # template of the path, such as /batches/{no}/ack; None: not in the table
    raw_headers: Sequence[tuple[bytes, bytes]]
    headers: Mapping[bytes, bytes]  # the first value of each name
    caller: Any = None

    @classmethod
    def of_scope(cls, scope: Scope, route_of: RouteOf) -> RequestFacts:
        method, path = scope.get("method", ""), scope["path"]
        raw = scope["headers"]
        route = route_of(method, path)
        return cls(scope["type"], method, path, route, raw, dict(reversed(raw)))

    def values_of(self, name: bytes) -> list[bytes]:
        """Every value of a header, for headers that must occur once."""
        return [value for header, value in self.raw_headers if header == name]


Check = Callable[[RequestFacts], "Response | None"]
Respond = Callable[[Exception, RequestFacts], "Response | None"]
Refuse = Callable[[int, str], Response]  # status, detail -> response in the form of a server


def no_response(error: Exception, facts: RequestFacts) -> None:
    """For servers whose framework answers all errors."""


def facts_of(connection: HTTPConnection) -> RequestFacts | None:
    """The facts that the gate has made; None for an app that is called without it."""
    facts: RequestFacts | None = connection.scope.get(FACTS_KEY)
    return facts


class Exchange:
    """Pass the messages of one request on; keep its status and count its bytes.

    Args:
        headers: are set in the response.
    """

    def __init__(
        self, receive: Receive, send: Send, headers: Callable[[], Mapping[str, str]] | None
    ) -> None:
        self._receive = receive
        self._send = send
        self._headers = headers
        self.began = time.monotonic()
        self.started = False
        self.status = NO_REPLY
        self.bytes_in = 0
        self.bytes_out = 0
        self.endless_since: float | None = None  # an event stream begins once, then never ends

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start(message)
        self.bytes_out += len(message.get("body", b""))
        await self._send(message)

    def _start(self, message: Message) -> None:
        self.started, self.status = True, message["status"]
        content_type = dict(message.get("headers", ())).get(b"content-type", b"")
        if content_type.startswith(b"text/event-stream"):
            self.endless_since = time.monotonic()
        if self._headers is not None:
            MutableHeaders(scope=message).update(self._headers())


class RequestRecord(Protocol):
    """Log and metrics of requests."""

    def on_start(self) -> None:
        """A request has arrived."""

    def on_end(self, facts: RequestFacts, exchange: Exchange) -> None:
        """Its response was sent, or there is none."""


class Gate:
    """ASGI app that checks, records and answers requests before and around ``app``.

    Args:
        checks: in the order in which they may refuse a request.
        route_of: template of a method and a path; called once for each request.
        respond: response to an error of ``app``; None: a plain 500, and the error is raised.
        record: sees the begin and the end of each HTTP request, refused ones included.
        headers: set in every response.
    """

    def __init__(
        self,
        app: ASGIApp,
        checks: Sequence[Check],
        *,
        route_of: RouteOf = no_route,
        respond: Respond = no_response,
        record: RequestRecord | None = None,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self.app = app
        self._checks = tuple(checks)
        self._route_of = route_of
        self._respond = respond
        self._record = record
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        facts = RequestFacts.of_scope(scope, self._route_of)
        scope[FACTS_KEY] = facts
        if facts.kind == "websocket":
            if self._refusal(facts) is None:
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        exchange = Exchange(receive, send, self._headers)
        if self._record is not None:
            self._record.on_start()
        errors: list[Exception] = []
        try:
            app = self._refusal(facts) or self.app
            with surviving(errors.append):
                await app(scope, exchange.receive, exchange.send)
            for error in errors:
                await self._answer(error, facts, exchange, scope)
        finally:
            if self._record is not None:
                self._record.on_end(facts, exchange)

    async def _answer(
        self, error: Exception, facts: RequestFacts, exchange: Exchange, scope: Scope
    ) -> None:
        """Send the response to an error, or 500 and raise it; nothing once a reply began."""
        response = None if exchange.started else self._respond(error, facts)
        if response is not None:
            await response(scope, exchange.receive, exchange.send)
            return
        if not exchange.started:
            fault = PlainTextResponse("Internal Server Error", 500)
            await fault(scope, exchange.receive, exchange.send)
        if exchange.status == 500 and isinstance(error, ConnectionError):
            exchange.status = NO_REPLY  # the client had left
        raise error

    def _refusal(self, facts: RequestFacts) -> Response | None:
        for check in self._checks:
            if (response := check(facts)) is not None:
                return response
        return None


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
