"""How long each request took, under the template of its route.

The outermost middleware: a request that another middleware refused counts as well.
"""

from __future__ import annotations

from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.guards.auth import route_of
from atroposlib.api.run.metrics import Metrics

UNKNOWN = "unknown"  # no such route: what strangers ask for must not become a label
_HUNG_UP = 499  # the client went away before an answer began


class RequestTimes:
    """Pure ASGI."""

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
    """Passes an answer on and remembers its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = _HUNG_UP
        self.endless_since: float | None = None  # an event stream answers once, then talks

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            content_type = dict(message.get("headers", ())).get(b"content-type", b"")
            if content_type.startswith(b"text/event-stream"):
                self.endless_since = monotonic()
        await self._send(message)
