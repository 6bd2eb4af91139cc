"""HTTP protocol of uvicorn with deadlines for slow clients and bounds on the head.

uvicorn waits for a request without a bound: forty clients that send a byte a second would keep
forty connections. This protocol gives each part of a request an absolute deadline, regardless
of the bytes that arrive meanwhile:

    head    from its first byte, or from the connection, to the empty line after it
    body    from then on to its last byte, longer for a long one; time in which the server does
            not read is not counted
    rest    of a body that was already answered, such as a rejected upload
    idle    between two requests

A connection without a request makes room for a new one, so idle ones block none. A request
beyond the limit is answered 503, a post first: waiting posts leave room for all other calls.
Slow processing in the application and slow reading of a reply are bounded elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any

from httptools import HttpRequestParser
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from atroposlib.api.guards.auth import RETRY_AFTER_S
from atroposlib.api.guards.body_limits import (
    POSTS,
    REFUSALS,
    WHOLE_BODY,
    TooSlow,
    retry_after,
)

_FLUSH_S = 60.0  # time to send the last reply; then the connection is aborted
_TURNED_AWAY = 64  # connections beyond the limit that are answered, of the spare files
_TURN_AWAY_S = 1.0  # for the client to read that answer
_FRAMING = 8  # bytes of chunk sizes, extensions and trailers for each byte of a body


@dataclass(frozen=True, slots=True)
class ReceiveLimits:
    """Bounds on the time and size of a request."""

    head_s: float = 10.0
    body_s: float = 60.0  # plus one second for each slowest_bytes received
    slowest_bytes: int = 32 * 2**10  # backstop: the application is stricter
    rest_s: float = 5.0
    idle_s: int = 30  # longer than httpx keeps idle connections, so the client closes them
    head_bytes: int = 32 * 2**10
    headers: int = 100
    sockets: int = 0  # open at a time; 0: twice the number of requests


class ReceivePhase(Enum):
    """What the connection waits for; the value is part of the error text."""

    IDLE = "a request"
    HEAD = "the head of the request"
    BODY = "the body of the request"
    REST = "the rest of a body"
    REPLY = "the application"  # the client has sent everything
    OVER = "the end"  # nothing more is read


class SlowClientProtocol(HttpToolsProtocol):
    """HTTP/1.1 with deadlines on receiving; a subclass may have other ``limits``."""

    limits = ReceiveLimits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._phase = ReceivePhase.HEAD
        self._entered = 0.0  # time of the loop at which the phase began
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._body_bytes = 0
        self._framing_bytes = 0
        # uvicorn would count idle connections, and refuse claims where only posts wait.
        self._max_requests, self.limit_concurrency = self.limit_concurrency, None
        self._was_reset = False
        self._on_reset: Callable[[], Coroutine[Any, Any, None]] | None = None

    # --- the connection -----------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter(ReceivePhase.HEAD)
        room = self.limits.sockets or 2 * (self._max_requests or len(self.connections))
        if len(self.connections) > room:  # the connection idle for longest makes room
            last = min(
                (
                    one
                    for one in self.connections
                    if isinstance(one, SlowClientProtocol)
                    and one is not self
                    and one._is_idle()
                ),
                key=lambda one: one._entered,
                default=self,
            )
            if last is self:
                REFUSALS.add(self._max_requests or room)
                if len(self.connections) <= room + _TURNED_AWAY:
                    self._turn_away()
                    return
            last._disarm()
            last._phase = ReceivePhase.OVER
            last.transport.abort()

    def _turn_away(self) -> None:
        """Answer 503, and read on for a while: an end with unread bytes would lose the answer."""
        self._disarm()
        self._phase = ReceivePhase.OVER
        self.transport.write(
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\n"
            b"retry-after: %b\r\ncontent-length: 21\r\nconnection: close\r\n\r\n"
            b"Too many connections\n" % retry_after(RETRY_AFTER_S).encode()
        )
        self._deadline = self.loop.call_later(_TURN_AWAY_S, self.transport.abort)

    def _is_idle(self) -> bool:
        """Whether no request is in progress."""
        no_head = self._phase is ReceivePhase.HEAD and not self._head_bytes
        return no_head or self._phase is ReceivePhase.IDLE

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._was_reset = isinstance(exc, ConnectionError)
        self._call_on_reset(self._on_reset)
        super().connection_lost(exc)

    def _call_on_reset(self, call: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Keep ``call`` until the next request; run it if the client reset the connection."""
        self._on_reset = call
        if self._was_reset and call is not None:
            task = self.loop.create_task(call())
            self.tasks.add(task)  # awaited by the server before it stops
            task.add_done_callback(self.tasks.discard)

    def data_received(self, data: bytes) -> None:
        if self._over():
            return
        in_body, body_before = self._in_body(), self._body_bytes
        if not in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._over():
            return
        if not in_body and self._phase is ReceivePhase.BODY:
            self.flow.pause_reading()  # until the application asks: posts wait unread
        if not self._in_body():
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(431)
        elif in_body:
            self._framing_bytes += len(data) - (self._body_bytes - body_before)
            # The parser buffers a trailer until it ends, and no limit of a body counts it.
            if self._framing_bytes > self.limits.head_bytes + _FRAMING * self._body_bytes:
                self._refuse(431)

    # --- the parser ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {
            # For clients that stopped reading: close() would wait for them.
            "atropos.abort": {"now": self.transport.abort},
            # request.is_disconnected() costs more than the rest of a small post.
            "atropos.gone": {"now": self.transport.is_closing},
            "atropos.reset": {"call": self._call_on_reset},
            WHOLE_BODY: {"read": self._read_whole},
        }
        self._on_reset = None
        if self._phase is ReceivePhase.IDLE:
            self._enter(ReceivePhase.HEAD)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.limits.head_bytes or len(self.headers) > self.limits.headers:
            self._refuse(431)
        if self._over():
            return
        self._head_bytes = self._body_bytes = self._framing_bytes = 0
        self._enter(ReceivePhase.BODY)
        app = self.app
        if (limit := self._max_requests) is not None:
            is_post = self.url.partition(b"?")[0].decode("latin-1") in POSTS
            if len(self.tasks) >= limit + (0 if is_post else limit // 4):
                self.app = _Busy(limit)
        super().on_headers_complete()
        self.app = app

    def on_body(self, body: bytes) -> None:
        if not self._over():
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._over():
            super().on_message_complete()
            self._enter(ReceivePhase.IDLE if self._answered() else ReceivePhase.REPLY)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._end()
        elif self._answered():  # else a pipelined request came in meanwhile
            self._enter(ReceivePhase.REST if self._in_body() else ReceivePhase.IDLE)

    async def _read_whole(self, size: int, within_s: float) -> bytearray | None:
        """The body, received without copies and the parser; None: it is received as usual.

        Raises:
            ClientDisconnect, TooSlow: it did not arrive, or not within ``within_s``.
        """
        cycle = self.cycle
        if cycle.waiting_for_100_continue or cycle.disconnected or not cycle.more_body:
            return None
        self.flow.pause_reading()
        rest, cycle.body = _RestOfBody(self, cycle.body, size), bytearray()
        cycle.message_event.clear()
        self.transport.set_protocol(rest)
        self.flow.resume_reading()
        late = self.loop.call_later(within_s, cycle.message_event.set)
        try:
            await cycle.message_event.wait()
        finally:
            late.cancel()
        if rest.filled == size:
            return rest.body
        if cycle.disconnected:
            raise ClientDisconnect
        raise TooSlow("the body arrived too slowly")

    # --- deadlines ----------------------------------------------------------------

    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _over(self) -> bool:
        return self._phase is ReceivePhase.OVER

    def _in_body(self) -> bool:
        return self._phase in (ReceivePhase.BODY, ReceivePhase.REST)

    def _enter(self, phase: ReceivePhase) -> None:
        self._disarm()
        self._phase = phase
        self._entered = self.loop.time()
        seconds: float | None = getattr(self.limits, f"{phase.name.lower()}_s", None)
        if seconds is not None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(seconds, self._late)

    def _body_until(self) -> float:
        earned_s = self._body_bytes / self.limits.slowest_bytes
        return self._entered + self.limits.body_s + earned_s

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        in_body = self._phase is ReceivePhase.BODY
        more_s = self._body_until() - self.loop.time() if in_body else 0.0
        if in_body and self.flow.read_paused:
            self._enter(ReceivePhase.BODY)  # the application is slow, or an earlier request is
        elif more_s > 0:
            self._deadline = self.loop.call_later(more_s, self._late)
        elif self._phase in (ReceivePhase.IDLE, ReceivePhase.REST):
            self._end()
        elif in_body:
            self._hang_up()  # as by a cut: what got no answer is repeated, a 4xx may drop a group
        else:
            self._refuse(408)

    # --- the end ------------------------------------------------------------------

    def _refuse(self, status: int) -> None:
        """Send an error, unless a response has begun, and close the connection."""
        if self._answered() or not self.cycle.response_started:
            late = f"Timed out waiting for {self._phase.value}\n"
            why = "Request head too large\n" if status == 431 else late
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: text/plain\r\n"
            head += f"content-length: {len(why)}\r\nconnection: close\r\n\r\n"
            self.transport.write((head + why).encode())
        self._hang_up()

    def _hang_up(self) -> None:
        if not self._answered():
            self.cycle.disconnected = True  # the application sees a disconnect
            self.cycle.message_event.set()
        self._end()

    def _end(self) -> None:
        self._disarm()
        self._phase = ReceivePhase.OVER
        self.transport.close()  # waits until everything is sent, which may be never
        self._deadline = self.loop.call_later(_FLUSH_S, self.transport.abort)


class _RestOfBody(asyncio.BufferedProtocol):
    """Receives what is missing of a body, in place of the protocol of its connection."""

    def __init__(self, owner: SlowClientProtocol, begun: bytearray, size: int) -> None:
        self._owner, self.filled = owner, len(begun)
        self.body = begun.ljust(size, b"\0")
        self.connection_lost = owner.connection_lost  # type: ignore[method-assign]
        # A pipelined reply may still be on its way: without these the next one would never be sent.
        self.pause_writing = owner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = owner.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.body)[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        owner, self.filled = self._owner, self.filled + nbytes
        owner._body_bytes += nbytes
        if self.filled == len(self.body):
            owner.flow.pause_reading()
            owner.transport.set_protocol(owner)
            owner.parser = HttpRequestParser(owner)  # the old one still waits for the body
            owner.parser.set_dangerous_leniencies(
                lenient_data_after_close=True
            )  # as uvicorn's
            owner.on_message_complete()
            owner.flow.resume_reading()


class _Busy:
    """The application of a request beyond the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await REFUSALS.add(self._limit)(scope, receive, send)


_REASONS = {408: "Request Timeout", 431: "Request Header Fields Too Large"}
