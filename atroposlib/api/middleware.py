"""Request bodies arrive whole, inflated and bounded, or not at all.

One pure ASGI middleware. It exists because a gzip bomb of 200 kB once took 200 MB and a
truncated one ended in a 500, and because any web page could call a GET that changes state.
"""

from __future__ import annotations

import zlib

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DEFAULT_MAX_BODY_BYTES = 128 * 2**20  # a list of 64 groups of 16 x 4096 tokens as JSON


class InvalidGzip(ValueError):
    """Not gzip, or cut short, or followed by something else."""


class BodyTooLarge(ValueError):
    """The body, or what it inflates to, is over the limit."""


def gunzip(body: bytes, max_bytes: int) -> bytes:
    """Inflate, stopping at ``max_bytes``.

    Raises:
        InvalidGzip: the payload is damaged or incomplete.
        BodyTooLarge: it inflates to more than ``max_bytes``.
    """
    if not body:
        return b""
    inflater = zlib.decompressobj(wbits=31)
    try:
        inflated = inflater.decompress(body, max_bytes + 1)
    except zlib.error as cause:
        raise InvalidGzip("Invalid gzip payload") from cause
    if len(inflated) > max_bytes:
        raise BodyTooLarge(f"the body inflates to more than {max_bytes} bytes")
    if not inflater.eof or inflater.unused_data:
        raise InvalidGzip("Invalid gzip payload")
    return inflated


class RequestBody:
    """Reads the body before the app runs; the app sees it plain and in one piece."""

    def __init__(self, app: ASGIApp, max_bytes: int = DEFAULT_MAX_BODY_BYTES) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            # A browser acts for a page of somebody else, and /reset_data is a GET.
            await _refuse(403, "cross-site requests are refused")(scope, receive, send)
            return
        try:
            body = await self._read(headers, receive)
        except InvalidGzip as error:
            await PlainTextResponse(str(error), status_code=400)(scope, receive, send)
        except BodyTooLarge as error:
            await _refuse(413, str(error))(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self.app(_plain(scope, len(body)), _replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.max_bytes:
            raise BodyTooLarge(f"a body has at most {self.max_bytes} bytes")
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self.max_bytes:
                raise BodyTooLarge(f"a body has at most {self.max_bytes} bytes")
            if not message.get("more_body", False):
                break
        body = b"".join(pieces)
        if "gzip" in headers.get("content-encoding", "").lower():
            return await anyio.to_thread.run_sync(gunzip, body, self.max_bytes)
        return body


def _plain(scope: Scope, length: int) -> Scope:
    scope = dict(scope, headers=list(scope["headers"]))
    headers = MutableHeaders(scope=scope)
    del headers["content-encoding"]
    if "content-length" in headers or "transfer-encoding" in headers:
        headers["content-length"] = str(length)
    return scope


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


def _refuse(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status, headers={"connection": "close"})
