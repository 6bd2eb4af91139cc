"""Request bodies read, response bodies written, and the response of each error."""

from __future__ import annotations

import asyncio
import zlib

import msgspec
from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from atroposlib.api.codec.formats import MalformedBody
from atroposlib.api.common.threads import IsDisconnected
from atroposlib.errors import (
    ConfigError,
    CorruptPayload,
    Forbidden,
    InvalidGroup,
    KeyConflict,
    NotRegistered,
    RunChanged,
    StaleGeneration,
    StoreError,
    StoreFull,
    Unauthorized,
    UnknownEnv,
)

# Response to each error: status code, and the word in ``status``.
STATUS_OF: dict[type[Exception], tuple[int, str]] = {
    MalformedBody: (400, "malformed"),
    Unauthorized: (401, "unauthorized"),
    Forbidden: (403, "forbidden"),
    UnknownEnv: (404, "unknown_env"),
    NotRegistered: (409, "not_registered"),
    StaleGeneration: (409, "fenced"),
    KeyConflict: (409, "key_conflict"),
    InvalidGroup: (422, "invalid"),
    ConfigError: (422, "invalid"),
    RunChanged: (503, "run_changed"),
    CorruptPayload: (503, "corrupt_payload"),  # its batch is dissolved: claim again
    StoreFull: (503, "store_full"),
    StoreError: (503, "store_failed"),
}
RETRY_AFTER_S = 5
_MAX_DETAIL_BYTES = 900  # an error response stays below 1 kB
_GZIP_SIZES = range(
    1000, 2**20
)  # below, it costs more than it saves; above, it takes too long


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


GONE_EXTENSION = "atropos.gone"  # set by SlowClientProtocol
MAX_CONTROL_BYTES = 256 * 1024  # control messages are parsed on the event loop


async def body_of(request: Request) -> bytes:
    """The body, which RequestBody passes on in one piece. ``Request.body`` would copy it."""
    message = await request.receive()
    if message["type"] != "http.request":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    return body


def require_small(body: bytes) -> None:
    """
    Raises:
        HTTPException: 413, a control message that is too large.
    """
    if len(body) > MAX_CONTROL_BYTES:
        raise HTTPException(413, f"this body has at most {MAX_CONTROL_BYTES} bytes")


def client_gone(request: Request) -> IsDisconnected:
    """A check whether the client of ``request`` hung up. Its body must have been read."""

    told = request.scope.get("extensions", {}).get(GONE_EXTENSION)

    async def gone() -> bool:
        await asyncio.sleep(
            0
        )  # let the loop process an end of the connection that has arrived
        return bool(told["now"]()) if told else await request.is_disconnected()

    return gone
