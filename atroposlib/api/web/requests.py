"""What routes need of requests: control messages parsed strictly, and who hung up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import HTTPException
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from atroposlib.api.common.threads import IsDisconnected

GONE_EXTENSION = "atropos.gone"  # of the server, see ImpatientProtocol
MOST_CONTROL_BYTES = 256 * 1024  # they are parsed on the event loop


class RawRoute(APIRoute):
    """A route that takes the request and nothing else: FastAPI has nothing to solve.

    It stands in the OpenAPI document like any other, and costs a third less.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint


class ControlRoute(APIRoute):
    """A route whose JSON body is small and really JSON.

    Python's own parser lets NaN, Infinity and lone surrogates through. Such a text cannot
    be written as UTF-8 again, so it would break whatever shows or saves it later.
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


async def body_of(request: Request) -> bytes:
    """The body, which RequestBody hands over in one piece. ``Request.body`` copies it."""
    message = await request.receive()
    if message["type"] != "http.request":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    return body


def require_small(body: bytes) -> None:
    """Refuse a control message that nobody means.

    Raises:
        HTTPException: 413.
    """
    if len(body) > MOST_CONTROL_BYTES:
        raise HTTPException(413, f"this body has at most {MOST_CONTROL_BYTES} bytes")


def client_gone(request: Request) -> IsDisconnected:
    """Whether the client of ``request`` hung up. Its body must have been read."""

    told = request.scope.get("extensions", {}).get(GONE_EXTENSION)

    async def gone() -> bool:
        await asyncio.sleep(0)  # let the loop read an end that has come in already
        return bool(told["now"]()) if told else await request.is_disconnected()

    return gone
