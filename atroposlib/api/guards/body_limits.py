"""Bounds on request bodies: size, time, compression, memory of all together, posts at a time.

One ASGI middleware that passes bodies on inflated. Without it a gzip bomb of 200 kB takes
200 MB, a truncated one ends in a 500, and ten thousand environments may post at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.codec.formats import GROUP_MEDIA, WHOLE_BYTES, Body, media_type
from atroposlib.api.common.threads import Pool
from atroposlib.api.guards.arrivals import (
    CHECK_S,
    FIRST_BYTES,
    BodyArrival,
    BudgetExceeded,
    FairBudget,
    Reservation,
)
from atroposlib.api.guards.auth import RETRY_AFTER_S
from atroposlib.api.guards.inflate import (
    BodyTooLarge,
    DamagedBody,
    inflate,
    inflated_size,
)
from atroposlib.utils.backoff import with_jitter

log = logging.getLogger(__name__)


class Refusals:
    """Requests refused because too many were open, in this process."""

    def __init__(self) -> None:
        self.count = 0
        self._logged = 0
        self._next_log = 0.0

    def add(self, limit: int) -> Response:
        """Count one, and log once a minute; the response to it."""
        self.count += 1
        problem = f"more than {limit} requests at once (--max-connections)"
        if time.monotonic() >= self._next_log:
            log.warning(
                "%s: %d refused since the last line", problem, self.count - self._logged
            )
            self._logged, self._next_log = self.count, time.monotonic() + 60.0
        headers = {"retry-after": retry_after(RETRY_AFTER_S), "connection": "close"}
        return JSONResponse({"detail": problem, "status": "busy"}, 503, headers)


REFUSALS = Refusals()


def retry_after(seconds: float) -> str:
    """A Retry-After of one to two times so many seconds, so that callers spread out."""
    return str(round(with_jitter(2 * seconds)))


DEFAULT_MAX_BODY_BYTES = 128 * 2**20  # a list of 48 groups of 16 x 4096 tokens as JSON
MAX_CONTROL_BYTES = 256 * 2**10  # of all other messages, which are parsed on the event loop
MAX_NOTES_BYTES = 32 * 2**20  # about a batch
MAX_SAMPLE_BYTES = 2 * 2**20  # of a dropped group
CREDITED = "/groups"  # of clients that wait after a 429; older ones would drop the groups
POSTS = frozenset({CREDITED, "/scored_data", "/scored_data_list"})  # they carry groups
IN_FLIGHT_BYTES = 128 * 2**20  # of the first bytes of all bodies
SMALL_BYTES = 64 * 2**10  # control messages never queue behind groups
BUDGET_TIMEOUT_S = 30.0
# Posts that are parsed and stored at a time, so that claims and acks never wait behind all of
# them. A post whose body has not arrived has no turn. Beyond so many a post with credits is
# refused at once.
POSTS_AT_ONCE = 16
POSTS_IN_LINE = 4096
POSTS_PER_S = 256  # about; for Retry-After
TURN_KEY = "atropos.turn"  # of the scope: gives the turn back
FIRST_WITHIN_S = 1.0  # for the first bytes of a body that arrives at speed
# Time for a body, plus one second for each SLOWEST_BYTES_PER_S bytes received.
GRACE_S = 30.0
SLOWEST_BYTES_PER_S = 64 * 2**10

_Headers = dict[bytes, bytes]


class TooSlow(ValueError):
    """The body did not arrive in time."""


class RequestBody:
    """ASGI middleware that reads and bounds the body before the app runs.

    The app gets an inflated body: whole, or a large one by the key ``pieces`` of its message.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int = DEFAULT_MAX_BODY_BYTES,
        *,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
        budget_timeout_s: float = BUDGET_TIMEOUT_S,
        grace_s: float = GRACE_S,
        posts_at_once: int = POSTS_AT_ONCE,
        line_s: float = BUDGET_TIMEOUT_S,
        inflating: Pool | None = None,
    ) -> None:
        self.app = app
        self.max_bytes = max_bytes
        budget = partial(
            FairBudget,
            wait_s=budget_timeout_s,
            problem="too many bytes are on their way in; try again later",
            on_wait=self._check_soon,
        )
        self._first = budget(max(in_flight_bytes, 2 * min(max_bytes, FIRST_BYTES)))
        self._rest = budget(2 * max_bytes)
        self._line = FairBudget(
            posts_at_once, line_s, "too many posts are on their way in; try again later"
        )
        self._grace_s = grace_s
        self._inflating = inflating or Pool(2)
        self._arrivals: set[BodyArrival] = set()
        self._check: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        max_bytes = self.max_bytes if path in POSTS else min(self.max_bytes, _most(path))
        with (
            Reservation(self._line) as turn,
            BodyArrival(self._first, self._rest, max_bytes) as arrival,
        ):
            try:
                await self._pass_on(scope, receive, send, turn, arrival)
            except DamagedBody as error:  # of a large one, in the app
                await PlainTextResponse(str(error), 400)(scope, receive, send)
            except (TooSlow, BodyTooLarge, BudgetExceeded) as error:
                abort = scope.get("extensions", {}).get("atropos.abort")
                if isinstance(error, TooSlow) and abort is not None:
                    abort["now"]()  # no answer: that is repeated, where a 4xx may drop a group
                    return
                await self._refusal(error, path)(scope, receive, send)
            except ClientDisconnect:
                return

    async def _pass_on(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        turn: Reservation,
        arrival: BodyArrival,
    ) -> None:
        path = scope["path"]
        if path == CREDITED and self._line.waiting >= POSTS_IN_LINE:
            raise BudgetExceeded(f"more than {POSTS_IN_LINE} posts are waiting")
        body, plain = await self._read(scope, receive, arrival)
        if path in POSTS:
            await turn.grow_to(1)
            plain[TURN_KEY] = turn
        await self.app(plain, _replay(body, receive), send)

    def _check_soon(self) -> None:
        if self._check is None:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(CHECK_S, self._make_room)

    def _make_room(self) -> None:
        """Free what slow bodies hold for the requests that wait.

        They keep what they have received. If that is what is missing, the largest is cut off.
        """
        self._check = None
        slow = [arrival for arrival in self._arrivals if arrival.is_slow()]
        missing = max(self._first.missing, self._rest.missing)
        if not missing:
            return
        self._check_soon()
        freed = [arrival for arrival in slow if arrival.step_aside()]
        if not freed and sum(arrival.held for arrival in slow) >= missing:
            max(slow, key=lambda arrival: arrival.held).deadline.cancel()

    def _refusal(self, error: Exception, path: str) -> Response:
        status, headers = _STATUS_OF[type(error)], {"connection": "close"}
        if status == 503:
            line = 1 + self._line.waiting // POSTS_PER_S
            headers["retry-after"] = retry_after(max(RETRY_AFTER_S, line))
            if path == CREDITED:  # whose clients wait as long as Retry-After asks
                return JSONResponse({"detail": str(error), "status": "busy"}, 429, headers)
        return JSONResponse({"detail": str(error)}, status, headers=headers)

    async def _read(
        self, scope: Scope, receive: Receive, arrival: BodyArrival
    ) -> tuple[Body, Scope]:
        """The inflated body, and a copy of ``scope`` with its headers."""
        headers: _Headers = dict(reversed(scope["headers"]))  # the first of each name
        kept = _stored_compressed(headers)
        received, max_bytes = arrival.received, arrival.received.max_bytes
        declared = _declared(headers)
        if declared > max_bytes:
            raise BodyTooLarge(f"a body has at most {max_bytes} bytes")
        if declared > SMALL_BYTES:
            await arrival.reserve(min(declared, FIRST_BYTES))
        self._arrivals.add(arrival)
        try:
            await self._receive(arrival, receive, declared)
        finally:
            self._arrivals.discard(arrival)
        named = headers.get(b"content-encoding", b"").lower()
        encoding = next((name for name in ("gzip", "zstd") if name.encode() in named), "")
        if kept or not encoding or not received.size:
            small = received.size <= WHOLE_BYTES
            body: Body = received.whole() if small else received.pieces()
            return body, _plain(scope, received.size, kept)
        packed = received.whole()
        size = await self._inflating.run(inflated_size, encoding, packed, max_bytes)
        if size > SMALL_BYTES:  # before it is inflated, not after
            await arrival.reserve(size)
        body = inflate(encoding, packed, size)
        if size <= WHOLE_BYTES:
            body = await self._inflating.run(b"".join, body)
        return body, _plain(scope, size, kept)

    async def _receive(self, arrival: BodyArrival, receive: Receive, declared: int) -> None:
        received, now = arrival.received, asyncio.get_running_loop().time
        begun = now()
        # One timer for the whole body: arming one costs as much as receiving a piece.
        arrival.deadline.deadline = begun + self._grace_s
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
                    fast = waiting_since - begun < FIRST_WITHIN_S
                    # All of it, so that what arrives at speed can be finished once it has begun.
                    await arrival.reserve(max(size, declared) if fast else size)
                    begun += now() - waiting_since
                if not message.get("more_body", False):
                    return
                if scope.deadline - now() < self._grace_s / 2 or scope.deadline == math.inf:
                    scope.deadline = begun + self._grace_s + size / SLOWEST_BYTES_PER_S
        raise TooSlow("the body arrived too slowly")


def _most(path: str) -> int:
    if path == "/drops":
        return MAX_SAMPLE_BYTES
    return MAX_NOTES_BYTES if path.endswith("/notes") else MAX_CONTROL_BYTES


def _declared(headers: _Headers) -> int:
    text = headers.get(b"content-length", b"")
    return int(text[:20]) if text.isdigit() else 0


def _stored_compressed(headers: _Headers) -> bool:
    """Whether the body is a group in a zstd frame, which the codec inflates itself."""
    return headers.get(b"content-encoding", b"").strip().lower() == b"zstd" and (
        media_type(headers.get(b"content-type", b"").decode("latin-1")) == GROUP_MEDIA
    )


def _plain(scope: Scope, length: int, kept: bool) -> Scope:
    """A copy of ``scope`` with the headers of the inflated body."""
    replaced = {b"content-length"} if kept else {b"content-length", b"content-encoding"}
    headers = [one for one in scope["headers"] if one[0] not in replaced]
    if len(headers) < len(scope["headers"]) or length:
        headers.append((b"content-length", b"%d" % length))
    return dict(scope, headers=headers)


def _replay(body: Body, receive: Receive) -> Receive:
    message: Message = {"type": "http.request", "body": b"", "more_body": False}
    message["body" if isinstance(body, (bytes, bytearray)) else "pieces"] = body
    pending = [message]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


_STATUS_OF = {TooSlow: 408, BodyTooLarge: 413, BudgetExceeded: 503}
