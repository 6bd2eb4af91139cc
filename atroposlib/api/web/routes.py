"""Route classes of the API, bodies of requests and of responses."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import HTTPException
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, request_response

from atroposlib.api.codec.formats import Body
from atroposlib.api.common.waiting import IsDisconnected

# Below, it costs more than it saves; above, it takes too long.
_GZIP_SIZES = range(1000, 2**20)
GONE_EXTENSION = "atropos.gone"  # set by SlowClientProtocol


class BytesRoute(APIRoute):
    """A route whose handler takes the request only, run by Starlette without FastAPI's part.

    It appears in the OpenAPI document like any route, and a poll costs an eighth less.
    """

    matches = Route.matches
    handle = Route.handle

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        self.app = request_response(endpoint)


class JsonRoute(APIRoute):
    """A route with a small, strictly parsed JSON body.

    Python's parser accepts NaN, Infinity and lone surrogates. The resulting text cannot be encoded
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
    extension = request.scope.get("extensions", {}).get(GONE_EXTENSION)

    async def gone() -> bool:
        await asyncio.sleep(0)  # the loop processes an end of the connection that has arrived
        return bool(extension["now"]()) if extension else await request.is_disconnected()

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
