"""Request bodies: read within bounds on size and time, inflated, and passed on.

    Gate -> RequestBody: memory for the body, its bytes, inflation, a turn for a post -> app

Without it a gzip bomb of 200 kB takes 200 MB, a truncated body ends in a 500, and ten thousand
environments may post at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.codec.formats import GROUP_MEDIA, WHOLE_BYTES, Body, media_type
from atroposlib.api.common.pools import Pool
from atroposlib.api.guards.arrivals import FIRST_BYTES, BodyArrival, BodyMemory
from atroposlib.api.guards.budget import BudgetExceeded, FairBudget, Reservation
from atroposlib.api.guards.busy import RETRY_AFTER_S, retry_after
from atroposlib.api.guards.inflate import (
    BodyTooLarge,
    DamagedBody,
    inflate,
    inflated_size,
)
from atroposlib.utils.http.gate import FACTS_KEY

CREDITED = "/groups"  # its clients wait after a 429; older clients would drop the groups
POSTS = frozenset({CREDITED, "/scored_data", "/scored_data_list"})  # they carry groups
SMALL_BYTES = 64 * 2**10  # control messages never queue behind groups
TURN_KEY = "atropos.turn"  # a key of the scope; its value gives the turn back
_POSTS_PER_S = 256  # about; for Retry-After
_FIRST_WITHIN_S = 1.0  # the first bytes of a body at speed have arrived by then


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds on bodies: bytes, also inflated, and seconds."""

    post_bytes: int = 128 * 2**20  # a list of 48 groups of 16 x 4096 tokens as JSON
    notes_bytes: int = 32 * 2**20  # about a batch
    sample_bytes: int = 2 * 2**20  # bound on a sample of a dropped group
    # all other messages, which are parsed on the event loop
    control_bytes: int = 256 * 2**10
    in_flight_bytes: int = 128 * 2**20  # the first bytes of all bodies
    memory_s: float = 30.0  # wait for memory
    # Posts that are parsed and stored at a time, so that claims and acks never wait behind all
    # posts. A post whose body has not arrived has no turn. Beyond so many in line a post with
    # credits is refused at once.
    posts_at_once: int = 16
    posts_in_line: int = 4096
    line_s: float = 30.0  # wait for a turn
    # Time for a body, plus a second for each slowest_bytes received.
    grace_s: float = 30.0
    slowest_bytes: int = 64 * 2**10

    def max_bytes(self, path: str) -> int:
        """The bound on a body sent to ``path``."""
        if path in POSTS:
            return self.post_bytes
        if path == "/drops":
            return min(self.post_bytes, self.sample_bytes)
        control = self.notes_bytes if path.endswith("/notes") else self.control_bytes
        return min(self.post_bytes, control)


DEFAULT_LIMITS = BodyLimits()


class TooSlow(ValueError):
    """The body did not arrive in time."""


_STATUS_OF: dict[type[Exception], int] = {
    TooSlow: 408,
    BodyTooLarge: 413,
    BudgetExceeded: 503,
}


class RequestBody:
    """ASGI layer behind the gate: reads, bounds and inflates a body before the app runs.

    The app receives an inflated body: whole, or a large body by the key ``pieces`` of its message.
    The headers stay as sent by the client.
    """

    def __init__(
        self, app: ASGIApp, limits: BodyLimits = DEFAULT_LIMITS, inflating: Pool | None = None
    ) -> None:
        self.app = app
        self._limits = limits
        self._memory = BodyMemory(limits.post_bytes, limits.in_flight_bytes, limits.memory_s)
        self._line = FairBudget(
            limits.posts_at_once,
            limits.line_s,
            "too many posts are on their way in; try again later",
        )
        self._inflating = inflating or Pool(2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        arrival = self._memory.arrival(self._limits.max_bytes(path))
        with Reservation(self._line) as turn, arrival:
            try:
                if path == CREDITED and self._line.waiting >= self._limits.posts_in_line:
                    in_line = self._limits.posts_in_line
                    raise BudgetExceeded(f"more than {in_line} posts are waiting")
                body = await self._read(scope[FACTS_KEY].headers, receive, arrival)
                if path in POSTS:
                    await turn.grow_to(1)
                    scope[TURN_KEY] = turn
                await self.app(scope, _replay(body, receive), send)
            except DamagedBody as error:  # a large body is read by the app
                await PlainTextResponse(str(error), 400)(scope, receive, send)
            except (TooSlow, BodyTooLarge, BudgetExceeded) as error:
                abort = scope.get("extensions", {}).get("atropos.abort")
                if isinstance(error, TooSlow) and abort is not None:
                    abort["now"]()  # a cut is retried, where a 4xx may drop a group
                else:
                    await self._refusal(error, path)(scope, receive, send)
            except ClientDisconnect:
                return

    def _refusal(self, error: Exception, path: str) -> Response:
        status, headers = _STATUS_OF[type(error)], {"connection": "close"}
        if status == 503:
            line_s = 1 + self._line.waiting // _POSTS_PER_S
            headers["retry-after"] = retry_after(max(RETRY_AFTER_S, line_s))
            if path == CREDITED:  # its clients wait as long as Retry-After asks
                return JSONResponse({"detail": str(error), "status": "busy"}, 429, headers)
        return JSONResponse({"detail": str(error)}, status, headers=headers)

    async def _read(
        self, headers: Mapping[bytes, bytes], receive: Receive, arrival: BodyArrival
    ) -> Body:
        """The inflated body."""
        received = arrival.received
        length = headers.get(b"content-length", b"")
        declared = int(length[:20]) if length.isdigit() else 0
        if declared > received.max_bytes:
            raise BodyTooLarge(f"a body has at most {received.max_bytes} bytes")
        if declared > SMALL_BYTES:
            await arrival.reserve(min(declared, FIRST_BYTES))
        self._memory.receiving.add(arrival)
        try:
            await self._receive(arrival, receive, declared)
        finally:
            self._memory.receiving.discard(arrival)
        encoding = _encoding_of(headers)
        if encoding and received.size:
            return await self._inflated_body(encoding, arrival)
        return received.whole() if received.size <= WHOLE_BYTES else received.pieces()

    async def _receive(self, arrival: BodyArrival, receive: Receive, declared: int) -> None:
        received, limits = arrival.received, self._limits
        now = asyncio.get_running_loop().time
        began = now()
        # A single timer for the whole body: arming a timer costs as much as receiving a piece.
        arrival.deadline.deadline = began + limits.grace_s
        with arrival.deadline as scope:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                received.add(message.get("body", b""))
                size = received.size
                if size > max(SMALL_BYTES, arrival.held):
                    scope.deadline = math.inf  # the server waits here, not the client
                    waiting_since = now()
                    fast = waiting_since - began < _FIRST_WITHIN_S
                    # All of it, so that what arrives at speed can be finished once it has begun.
                    await arrival.reserve(max(size, declared) if fast else size)
                    began += now() - waiting_since
                if not message.get("more_body", False):
                    return
                if scope.deadline - now() < limits.grace_s / 2 or scope.deadline == math.inf:
                    scope.deadline = began + limits.grace_s + size / limits.slowest_bytes
        raise TooSlow("the body arrived too slowly")

    async def _inflated_body(self, encoding: str, arrival: BodyArrival) -> Body:
        packed, max_bytes = arrival.received.whole(), arrival.received.max_bytes
        size = await self._inflating.run(inflated_size, encoding, packed, max_bytes)
        if size > SMALL_BYTES:  # a turn is needed before it is inflated, not after
            await arrival.reserve(size)
        pieces = inflate(encoding, packed, size)
        if size > WHOLE_BYTES:
            return pieces
        return await self._inflating.run(b"".join, pieces)


def _encoding_of(headers: Mapping[bytes, bytes]) -> str:
    """The compression to undo. The codec inflates a group in a zstd frame."""
    value = headers.get(b"content-encoding", b"").strip().lower()
    if value == b"zstd":
        kind = headers.get(b"content-type", b"").decode("latin-1")
        return "" if media_type(kind) == GROUP_MEDIA else "zstd"
    return next((name for name in ("gzip", "zstd") if name.encode() in value), "")


def _replay(body: Body, receive: Receive) -> Receive:
    message: Message = {"type": "http.request", "body": b"", "more_body": False}
    message["body" if isinstance(body, (bytes, bytearray)) else "pieces"] = body
    pending = [message]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed
