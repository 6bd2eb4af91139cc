"""HTTP protocol of uvicorn with deadlines for slow clients and bounds on the head.

uvicorn waits for a request without a bound: forty clients that send a byte a second would keep
forty connections. This protocol gives each part of a request an absolute deadline, regardless
of the bytes that arrive meanwhile:

    head    from its first byte, or from the connection, to the empty line after it
    body    from then on to its last byte, longer for a long body; time in which the server does
            not read is not counted
    rest    of a body that was already answered, e.g. a rejected upload
    idle    between two requests

A connection without a request makes room for a new connection, so idle connections block none.
A request beyond the limit is answered 503, a post first: waiting posts leave room for all
other calls. Slow processing in the application and slow reading of a reply are bounded
elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from atroposlib.api.guards.body import POSTS
from atroposlib.api.guards.busy import RETRY_AFTER_S, BusyReplies, retry_after
from atroposlib.utils.http.protocol import PlainParser

_FLUSH_S = 60.0  # time to send the last reply; then the connection is aborted
_TURNED_AWAY = 64  # connections beyond the limit that are answered, of the spare files
_TURN_AWAY_S = 1.0  # time for the client to read that answer
_FRAMING = 8  # bytes of chunk sizes, extensions and trailers for each byte of a body


@dataclass(frozen=True, slots=True)
class ReceiveLimits:
    """Bounds on the time and size of a request."""

    head_s: float = 10.0
    body_s: float = 60.0  # plus a second for each slowest_bytes received
    slowest_bytes: int = 32 * 2**10  # backstop: the application is stricter
    rest_s: float = 5.0
    # longer than httpx keeps idle connections, so the client closes connections
    idle_s: int = 30
    head_bytes: int = 32 * 2**10
    headers: int = 100
    sockets: int = 0  # open at a time; 0: twice the number of requests


class ReceivePhase(Enum):
    """Next event of the connection; the value is part of the error text."""

    IDLE = "a request"
    HEAD = "the head of the request"
    BODY = "the body of the request"
    REST = "the rest of a body"
    REPLY = "the application"  # the client has sent everything
    OVER = "the end"  # nothing more is read


class SlowClientProtocol(HttpToolsProtocol):
    """HTTP/1.1 with deadlines on receiving; a subclass may replace the class attributes."""

    limits = ReceiveLimits()
    busy = BusyReplies()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = PlainParser(self)  # type: ignore[assignment]
        self._phase = ReceivePhase.HEAD
        self._entered = 0.0  # time of the loop at which the phase began
        self._deadline: asyncio.TimerHandle | None = None
        self._parts = 0  # heads and bodies that ended
        self._body_bytes = 0  # bytes of the part that is being received
        self._other_bytes = 0  # bytes of that part in a head, chunk sizes, trailers
        # Requests without a complete response, oldest first. A client may send the next before
        # the reply to the last, so ``cycle``, the newest, is not always the request in progress.
        self._unanswered: deque[RequestResponseCycle] = deque()
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
                    connection
                    for connection in self.connections
                    if isinstance(connection, SlowClientProtocol)
                    and connection is not self
                    and connection._is_idle()
                ),
                key=lambda connection: connection._entered,
                default=self,
            )
            if last is self:
                self.busy.add(self._max_requests or room)
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
        no_head = self._phase is ReceivePhase.HEAD and not self._other_bytes
        return no_head or self._phase is ReceivePhase.IDLE

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._was_reset = isinstance(exc, ConnectionError)
        if self._on_reset is not None and self._was_reset:
            self._run(self._on_reset)
        self._mark_disconnected()
        super().connection_lost(exc)

    def _watch_reset(self, scope: Any, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``call`` if the client resets the connection before it sends another request."""
        if scope is not self.scope:
            return  # another request has begun: the client has read the reply to ``scope``
        if self._was_reset:
            self._run(call)
        self._on_reset = call

    def _run(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self.loop.create_task(call())
        self.tasks.add(task)  # awaited by the server before it stops
        task.add_done_callback(self.tasks.discard)

    def _mark_disconnected(self) -> None:
        """Let the application see a disconnect, and keep it from writing to a closed transport.

        uvicorn marks the newest request alone.
        """
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def _abort(self) -> None:
        """Close the connection at once. close() would wait for a client that stopped reading."""
        self._mark_disconnected()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._over():
            return
        in_body = self._in_body()
        parts_before, body_before = self._parts, self._body_bytes
        super().data_received(data)
        if self._over():
            return
        if not in_body and self._phase is ReceivePhase.BODY:
            self.flow.pause_reading()  # resumed when the application asks for the body
        if self._parts != parts_before:
            self._other_bytes = 0  # how much of the data belongs to the new part is unknown
            return
        # The parser buffers names and values until they end, and limits of a body do not count
        # these bytes.
        self._other_bytes += len(data) - (self._body_bytes - body_before)
        if self._other_bytes > self.limits.head_bytes + _FRAMING * self._body_bytes:
            self._refuse(431)

    # --- the parser ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {
            "atropos.abort": {"now": self._abort},
            # request.is_disconnected() costs more than the rest of a small post.
            "atropos.gone": {"now": self.transport.is_closing},
            "atropos.reset": {"call": partial(self._watch_reset, self.scope)},
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
        self._begin_part()
        self._enter(ReceivePhase.BODY)
        app, newest = self.app, self.cycle
        if (limit := self._max_requests) is not None:
            is_post = self.url.partition(b"?")[0].decode("latin-1") in POSTS
            if len(self.tasks) >= limit + (0 if is_post else limit // 4):
                self.app = partial(_answer_busy, self.busy, limit)
        super().on_headers_complete()
        self.app = app
        if self.cycle is not newest:
            self._unanswered.append(self.cycle)

    def _begin_part(self) -> None:
        self._parts += 1
        self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        if not self._over():
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._over():
            super().on_message_complete()
            self._begin_part()
            self._enter(ReceivePhase.IDLE if self._is_answered() else ReceivePhase.REPLY)

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if self.transport.is_closing():
            self._end()
        elif (
            self._is_answered() and not self._over()
        ):  # a pipelined request may have come in meanwhile
            self._enter(ReceivePhase.REST if self._in_body() else ReceivePhase.IDLE)

    def send_400_response(self, msg: str) -> None:
        """Reject what the parser cannot read, after the replies to the requests before it."""
        if not self._close_after_replies():
            super().send_400_response(msg)

    # --- deadlines ----------------------------------------------------------------

    def _is_answered(self) -> bool:
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
            # same as a cut: unanswered calls are repeated, a 4xx may drop a group
            self._hang_up()
        else:
            self._refuse(408)

    # --- the end ------------------------------------------------------------------

    def _refuse(self, status: int) -> None:
        """Send an error, unless a response has begun, and close the connection."""
        if self._close_after_replies():
            return
        if self._is_answered() or not self.cycle.response_started:
            late = f"Timed out waiting for {self._phase.value}\n"
            why = "Request head too large\n" if status == 431 else late
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: text/plain\r\n"
            head += f"content-length: {len(why)}\r\nconnection: close\r\n\r\n"
            self.transport.write((head + why).encode())
        self._hang_up()

    def _close_after_replies(self) -> bool:
        """Read no more, and close after the replies to earlier requests; False: there are none.

        An error that is sent before these replies would be taken for the first reply.
        """
        received = list(self._unanswered)
        if self._in_body() and not self._is_answered():
            received.pop()  # the request that is rejected
        if not received:
            return False
        received[-1].keep_alive = False
        self._disarm()
        self._phase = ReceivePhase.OVER
        self.flow.pause_reading()
        return True

    def _hang_up(self) -> None:
        self._mark_disconnected()
        self._end()

    def _end(self) -> None:
        self._disarm()
        self._phase = ReceivePhase.OVER
        self.transport.close()  # waits until everything is sent, which may be never
        self._deadline = self.loop.call_later(_FLUSH_S, self.transport.abort)


async def _answer_busy(
    busy: BusyReplies, limit: int, scope: Scope, receive: Receive, send: Send
) -> None:
    """The application of a request beyond the limit."""
    await busy.add(limit)(scope, receive, send)


_REASONS = {408: "Request Timeout", 431: "Request Header Fields Too Large"}
