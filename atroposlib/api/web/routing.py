"""Route classes, fast path, times and log of requests, bodies, response of each error.

FastAPI's router, exception handling and exit stacks cost more than a small post itself. The
fast path dispatches a :class:`BytesRoute` at a fixed path without them; its responses are
identical.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeAlias

import msgspec
from fastapi import FastAPI, HTTPException
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from atroposlib import errors
from atroposlib.api.codec.formats import Body
from atroposlib.api.common.threads import IsDisconnected
from atroposlib.api.guards.auth import RETRY_AFTER_S, route_of
from atroposlib.api.run.metrics import Metrics
from atroposlib.utils.command.logs import FIELDS
from atroposlib.utils.http_server import NO_REPLY, Exchange
from atroposlib.wire.safetensors import MalformedBody

log = logging.getLogger(__name__)

# Response to each error: status code, and the word in ``status``.
STATUS_OF: dict[type[Exception], tuple[int, str]] = {
    MalformedBody: (400, "malformed"),
    errors.Unauthorized: (401, "unauthorized"),
    errors.Forbidden: (403, "forbidden"),
    errors.UnknownEnv: (404, "unknown_env"),
    errors.UnknownGroup: (404, "unknown_group"),
    errors.NotRegistered: (409, "not_registered"),
    errors.StaleGeneration: (409, "fenced"),
    errors.RunTaken: (409, "run_taken"),
    errors.CannotRewind: (409, "cannot_rewind"),
    errors.KeyConflict: (409, "key_conflict"),
    errors.InvalidGroup: (422, "invalid"),
    errors.ConfigError: (422, "invalid"),
    errors.RunChanged: (503, "run_changed"),
    errors.CorruptPayload: (503, "corrupt_payload"),  # its batch is dissolved: claim again
    errors.StoreFull: (503, "store_full"),
    errors.StoreError: (503, "store_failed"),
}
_MAX_DETAIL_BYTES = 900  # an error response stays below 1 kB
# Below, it costs more than it saves; above, it takes too long.
_GZIP_SIZES = range(1000, 2**20)
GONE_EXTENSION = "atropos.gone"  # set by SlowClientProtocol

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
        try:
            return msgspec.json.decode(await self.body())
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


class GuardedApi(FastAPI):
    """FastAPI behind the guards, since its own layers cost more than they add to a fast path."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.guarded: ASGIApp = super().__call__

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.guarded(scope, receive, send)


UNKNOWN = "unknown"  # no such route: a path chosen by a client must not become a label


class RequestLog:
    """Outermost ASGI middleware: duration and status of each request, by its route.

    They go to the metrics, if any, and into one log line without data sent by the client:
    level debug for 2xx and 3xx, info for 4xx and 503, error for other 5xx.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics | None = None) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = Exchange(receive, send)
        begun = time.monotonic()
        if (metrics := self._metrics) is not None:
            metrics.requests_in_flight.inc()
        try:
            await self.app(scope, seen.receive, seen.send)
        except (ConnectionError, ClientDisconnect):
            if seen.status == 500:  # of ServerErrorMiddleware, to a client that had left
                seen.status = NO_REPLY
            raise
        finally:
            ended = time.monotonic()
            # Known routes only: any other path is arbitrary text.
            route = route_of(scope["method"], scope["path"]) or UNKNOWN
            if metrics is not None:
                metrics.requests_in_flight.dec()
                seconds = (seen.endless_since or ended) - begun
                metrics.observe_request(route, scope["method"], seen.status, seconds)
            if log.isEnabledFor(level := _level(seen.status)):
                fields = _fields(scope, route, seen, ended - begun)
                log.log(level, "request", extra={FIELDS: fields})


def _fields(scope: Scope, route: str, seen: Exchange, seconds: float) -> dict[str, object]:
    return {
        "method": scope["method"],
        "route": route,
        "status": seen.status,
        "ms": round(seconds * 1000, 1),
        "bytes_in": seen.bytes_in,
        "bytes_out": seen.bytes_out,
    }


def _level(status: int) -> int:
    if status < 400:
        return logging.DEBUG
    return logging.ERROR if status >= 500 and status != 503 else logging.INFO


# --- requests -------------------------------------------------------------------------


async def body_of(request: Request) -> Body:
    """The body, as RequestBody passes it on. ``Request.body`` would copy it."""
    message = await request.receive()
    if message["type"] != "http.request":
        raise ClientDisconnect
    body: Body = message.get("pieces", message.get("body", b""))
    return body


def client_gone(request: Request) -> IsDisconnected:
    """A check whether the client of ``request`` hung up. Its body must have been read."""
    told = request.scope.get("extensions", {}).get(GONE_EXTENSION)

    async def gone() -> bool:
        await asyncio.sleep(0)  # the loop processes an end of the connection that has arrived
        return bool(told["now"]()) if told else await request.is_disconnected()

    return gone


# --- responses ------------------------------------------------------------------------


def of_json(body: object, status_code: int = 200) -> Response:
    """A small JSON response. Pydantic models serialise themselves (NaN becomes null)."""
    content = (
        body.model_dump_json().encode()
        if isinstance(body, BaseModel)
        else msgspec.json.encode(body)
    )
    return Response(content, status_code, media_type="application/json")


def of_bytes(body: bytes, request: Request) -> Response:
    """A response of serialised JSON, gzipped where that is cheap. Call it in a thread."""
    headers = {"vary": "accept-encoding"}
    if len(body) in _GZIP_SIZES and "gzip" in request.headers.get("accept-encoding", ""):
        packer = zlib.compressobj(level=1, wbits=31)
        body = packer.compress(body) + packer.flush()
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers, media_type="application/json")


async def on_error(_: Request | None, error: Exception) -> Response:
    """The response to an error of this package, by ``STATUS_OF``."""
    kind = next(kind for kind in type(error).__mro__ if kind in STATUS_OF)
    status_code, word = STATUS_OF[kind]
    body: dict[str, str] = {"detail": _cut(str(error))}
    if status_code != 422:
        body["status"] = word
    response = of_json(body, status_code)
    if status_code == 503:
        response.headers["retry-after"] = str(RETRY_AFTER_S)
    if status_code == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def on_invalid_request(_: Request, error: Exception) -> Response:
    """The response to a body that breaks its model: place and reason, never the value."""
    assert isinstance(error, RequestValidationError)
    problems = [
        f"{'.'.join(str(part)[:100] for part in one['loc'])}: {one['msg'][:200]}"
        for one in error.errors()[:3]
    ]
    return of_json({"detail": _cut("; ".join(problems))}, 422)


def _cut(text: str) -> str:
    """``text`` cut by its encoded size, because keys of the sender may consist of escapes."""
    while len(msgspec.json.encode(text)) > _MAX_DETAIL_BYTES:
        text = text[: len(text) * 3 // 4]
    return text
