"""The lower limit: cost of the same bytes for any Python HTTP server on this machine.

POST counts the body and drops it; GET /?n sends n bytes that exist already.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=4)
def _bytes(size: int) -> bytes:
    return os.urandom(1024) * (size // 1024) + bytes(size % 1024)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    received = 0
    more = scope["method"] == "POST"
    while more:
        message = await receive()
        received += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = b'{"n":%d}' % received
    if scope["method"] == "GET":
        body = _bytes(int(scope["query_string"] or b"0"))
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
