"""Log of the rollout API's requests, without data sent by a client."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from atroposlib.api.guards.auth import route_of
from atroposlib.utils.command.logs import FIELDS
from atroposlib.utils.http_server import Exchange

_requests = logging.getLogger("atroposlib.api.web.routing")


class RequestLog:
    """ASGI middleware: one line per request with route, status, duration and bytes.

    Level debug for 2xx and 3xx, info for 4xx and 503, error for other 5xx.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = Exchange(receive, send)
        began = time.perf_counter()
        try:
            await self.app(scope, seen.receive, seen.send)
        finally:
            self._note(scope, seen, time.perf_counter() - began)

    def _note(self, scope: Scope, seen: Exchange, seconds: float) -> None:
        level = _level(seen.status)
        if not _requests.isEnabledFor(level):
            return
        fields = {
            "method": scope["method"],
            # Known routes only: any other path is arbitrary text.
            "route": route_of(scope["method"], scope["path"]) or "unknown",
            "status": seen.status,
            "ms": round(seconds * 1000, 1),
            "bytes_in": seen.bytes_in,
            "bytes_out": seen.bytes_out,
        }
        _requests.log(level, "request", extra={FIELDS: fields})


def _level(status: int) -> int:
    if status < 400:
        return logging.DEBUG
    return logging.ERROR if status >= 500 and status != 503 else logging.INFO
