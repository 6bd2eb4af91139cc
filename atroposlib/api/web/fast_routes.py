"""Route classes, fast path of the frequent routes, and timing of all requests.

FastAPI's router, exception handling and exit stacks cost more than a small post itself. The
fast path dispatches a :class:`BytesRoute` at a fixed path without them; its responses are
identical.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from time import monotonic
from typing import Any, TypeAlias

import msgspec
from fastapi import HTTPException
from fastapi.exception_handlers import http_exception_handler
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.guards.auth import route_of
from atroposlib.api.guards.logs import NO_REPLY
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.web.bodies import STATUS_OF, require_small

ErrorHandler: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]
_REFUSED = tuple(STATUS_OF)


class BytesRoute(APIRoute):
    """A route whose handler takes the request only, without FastAPI's dependencies.

    It appears in the OpenAPI document like any other, and costs a third less.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint


class JsonRoute(APIRoute):
    """A route with a small, strictly parsed JSON body.

    Python's parser accepts NaN, Infinity and lone surrogates. Such a text cannot be encoded
    as UTF-8 again, so it would break each later reply and log line that contains it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return handle


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        require_small(body)
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HTTPException(422, "the body is not valid JSON") from error


class FastPath:
    """Innermost ASGI middleware: dispatches the routes with fixed paths by one lookup."""

    def __init__(
        self, app: ASGIApp, routes: Iterable[BaseRoute], refuse: ErrorHandler
    ) -> None:
        self.app = app
        self._refuse = refuse
        self._handlers = {
            (method, route.path): route.get_route_handler()
            for route in routes
            if isinstance(route, BytesRoute) and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = None
        if scope["type"] == "http":
            handler = self._handlers.get((scope["method"], scope["path"]))
        if handler is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await handler(request)
        except _REFUSED as error:
            response = await self._refuse(request, error)
        except HTTPException as error:
            response = await http_exception_handler(request, error)
        await response(scope, receive, send)


UNKNOWN = "unknown"  # no such route: a path chosen by a client must not become a label


class RequestTimes:
    """Outermost ASGI middleware: duration and status of each request, by its route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = _Answer(send)
        begun = monotonic()
        with self._metrics.requests_in_flight.track_inprogress():
            try:
                await self.app(scope, receive, seen)
            finally:
                self._metrics.observe_request(
                    route_of(scope["method"], scope["path"]) or UNKNOWN,
                    scope["method"],
                    seen.status,
                    (seen.endless_since or monotonic()) - begun,
                )


class _Answer:
    """Pass a response on and keep its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = NO_REPLY
        self.endless_since: float | None = None  # an event stream begins once, then never ends

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            content_type = dict(message.get("headers", ())).get(b"content-type", b"")
            if content_type.startswith(b"text/event-stream"):
                self.endless_since = monotonic()
        await self._send(message)
