"""Bounds on request bodies: size, time, compression, memory of all together, posts at a time.

One ASGI middleware that passes bodies on inflated. Without it a gzip bomb of 200 kB takes
200 MB, a truncated one ends in a 500, and ten thousand environments may post at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.codec.formats import GROUP_MEDIA, WHOLE_BYTES, Body, media_type
from atroposlib.api.common.threads import GATHER_S, Expected, Gathering, Pool
from atroposlib.api.guards.auth import RETRY_AFTER_S
from atroposlib.api.guards.inflate import (
    PIECE_BYTES,
    BodyTooLarge,
    DamagedBody,
    inflate,
    inflated_size,
)
from atroposlib.utils.backoff import jittered

log = logging.getLogger(__name__)


class BudgetExceeded(Exception):
    """Other requests hold too many bytes and did not free them in time."""


class FairBudget:
    """``size`` bytes or turns of all requests, first come first served. For one event loop."""

    def __init__(self, size: int, wait_s: float, problem: str) -> None:
        self._left = size
        self._wait_s = wait_s
        self._problem = problem
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def take(self, size: int) -> None:
        """Take ``size`` of it.

        Raises:
            BudgetExceeded: other requests did not free theirs within ``wait_s``.
        """
        if not self._waiting and size <= self._left:
            self._left -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await asyncio.wait_for(turn, self._wait_s)
        except (asyncio.TimeoutError, asyncio.CancelledError) as end:
            if turn.done() and not turn.cancelled():  # it was granted in the same instant
                self._left += size
            else:
                self._waiting = deque(one for one in self._waiting if one[1] is not turn)
            self._serve()
            if isinstance(end, asyncio.CancelledError):
                raise
            raise BudgetExceeded(self._problem) from end

    def give(self, size: int) -> None:
        """Free ``size`` of it."""
        self._left += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._left:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._left -= size
                turn.set_result(None)


class Reservation(AbstractContextManager["Reservation"]):
    """What one request holds of ``budget``; a context manager that frees it."""

    def __init__(self, budget: FairBudget) -> None:
        self._budget = budget
        self.held = 0

    async def grow_to(self, size: int) -> None:
        """Hold at least ``size``, as :meth:`FairBudget.take`."""
        if size > self.held:
            await self._budget.take(size - self.held)
            self.held = size

    def give_back(self) -> None:
        self._budget.give(self.held)
        self.held = 0

    def __exit__(self, *raised: object) -> None:
        self.give_back()


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
    return str(round(jittered(2 * seconds)))


DEFAULT_MAX_BODY_BYTES = 128 * 2**20  # a list of 48 groups of 16 x 4096 tokens as JSON
MAX_CONTROL_BYTES = 256 * 2**10  # of all other messages, which are parsed on the event loop
MAX_NOTES_BYTES = 32 * 2**20  # about a batch
MAX_SAMPLE_BYTES = 2 * 2**20  # of a dropped group
CREDITED = "/groups"  # of clients that wait after a 429; older ones would drop the groups
POSTS = frozenset({CREDITED, "/scored_data", "/scored_data_list"})  # they carry groups
IN_FLIGHT_BYTES = 256 * 2**20  # of all bodies that are being read, parsed or stored
SMALL_BYTES = 64 * 2**10  # control messages never queue behind groups
BUDGET_TIMEOUT_S = 30.0
# Posts that are read, parsed and stored at a time; the others wait unread, so that claims and
# acks never wait behind them. Beyond so many a post with credits is refused at once.
POSTS_AT_ONCE = 16
POSTS_IN_LINE = 4096
POSTS_PER_S = 256  # about; for Retry-After
# A body that takes longer to arrive, or a post held for space, does not keep its turn.
TURN_S = 1.0
TURN_KEY = "atropos.turn"  # of the scope: gives the turn back
EXPECTED_KEY = "atropos.expected"  # of the scope: other posts wait for this one
# Time for a body, plus one second for each SLOWEST_BYTES_PER_S bytes received.
GRACE_S = 30.0
WHOLE_BODY = "atropos.whole_body"  # extension of the scope: reads a body of known size at once
SLOWEST_BYTES_PER_S = 64 * 2**10

_Headers = dict[bytes, bytes]


class TooSlow(ValueError):
    """The body did not arrive in time."""


class ReceivedBody:
    """The received bytes: a large body in pages that return to the system as they are read.

    Freed pieces of it on the heap would stay with the process until all are freed.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes | bytearray] = []
        self._pages: mmap | None = None
        self.size = 0

    def add(self, piece: bytes | bytearray) -> None:
        self.size += len(piece)
        if self.size > self._max_bytes:
            raise BodyTooLarge(f"a body has at most {self._max_bytes} bytes")
        self._pieces.append(piece)
        if self.size > WHOLE_BYTES and self._pages is None:
            self._pages = mmap(-1, self._max_bytes, MAP_PRIVATE | MAP_ANONYMOUS)
        if self._pages is not None:
            self._pages.write(b"".join(self._pieces))
            self._pieces.clear()

    def whole(self) -> bytes | bytearray:
        """All of a small body, or of a compressed one."""
        if self._pages is not None:
            return self._pages[: self.size]
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def pieces(self) -> Iterator[bytes]:
        """All of a large body, once."""
        assert self._pages is not None
        for start in range(0, self.size, PIECE_BYTES):
            yield self._pages[start : min(start + PIECE_BYTES, self.size)]
            self._pages.madvise(
                MADV_DONTNEED, start, min(PIECE_BYTES, len(self._pages) - start)
            )


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
        gather_s: float = GATHER_S,
    ) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self._budget = FairBudget(
            max(in_flight_bytes, 2 * max_bytes),
            budget_timeout_s,
            "too many bytes are on their way in; try again later",
        )
        self._line = FairBudget(
            posts_at_once, line_s, "too many posts are on their way in; try again later"
        )
        self._grace_s = grace_s
        self._inflating = inflating or Pool(2)
        self._gathering = Gathering(gather_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with Reservation(self._line) as turn, Reservation(self._budget) as reservation:
            try:
                await self._pass_on(scope, receive, send, turn, reservation)
            except DamagedBody as error:  # of a large one, in the app
                await PlainTextResponse(str(error), 400)(scope, receive, send)
            except (TooSlow, BodyTooLarge, BudgetExceeded) as error:
                abort = scope.get("extensions", {}).get("atropos.abort")
                if isinstance(error, TooSlow) and abort is not None:
                    abort["now"]()  # no answer: that is repeated, where a 4xx may drop a group
                    return
                await self._refusal(error, scope["path"])(scope, receive, send)
            except ClientDisconnect:
                return

    async def _pass_on(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        turn: Reservation,
        reservation: Reservation,
    ) -> None:
        path = scope["path"]
        if path not in POSTS:
            most = min(self.max_bytes, _most(path))
            body, plain = await self._read(scope, receive, reservation, most)
            await self.app(plain, _replay(body, receive), send)
            return
        if path == CREDITED and self._line.waiting >= POSTS_IN_LINE:
            raise BudgetExceeded(f"more than {POSTS_IN_LINE} posts are waiting")
        await turn.grow_to(1)
        with self._gathering.expect() as expected:
            late = asyncio.get_running_loop().call_later(TURN_S, _step_aside, turn, expected)
            try:
                body, plain = await self._read(scope, receive, reservation, self.max_bytes)
            finally:
                late.cancel()
            await turn.grow_to(1)
            plain[TURN_KEY], plain[EXPECTED_KEY] = turn, expected
            await self.app(plain, _replay(body, receive), send)

    def _refusal(self, error: Exception, path: str) -> Response:
        status, headers = _STATUS_OF[type(error)], {"connection": "close"}
        if status == 503:
            line = 1 + self._line.waiting // POSTS_PER_S
            headers["retry-after"] = retry_after(max(RETRY_AFTER_S, line))
            if path == CREDITED:  # whose clients wait as long as they are told
                return JSONResponse({"detail": str(error), "status": "busy"}, 429, headers)
        return JSONResponse({"detail": str(error)}, status, headers=headers)

    async def _read(
        self, scope: Scope, receive: Receive, reservation: Reservation, max_bytes: int
    ) -> tuple[Body, Scope]:
        """The inflated body, and a copy of ``scope`` with its headers."""
        headers: _Headers = dict(reversed(scope["headers"]))  # the first of each name
        kept = _stored_compressed(headers)
        declared = _declared(headers)
        if declared > max_bytes:
            raise BodyTooLarge(f"a body has at most {max_bytes} bytes")
        if declared > SMALL_BYTES:  # all of it, so that a begun body can be finished
            await reservation.grow_to(declared)
        at_once = scope.get("extensions", {}).get(WHOLE_BODY)
        received, whole = ReceivedBody(max_bytes), None
        if at_once is not None and SMALL_BYTES < declared <= WHOLE_BYTES:
            within_s = self._grace_s + declared / SLOWEST_BYTES_PER_S
            whole = await at_once["read"](declared, within_s)
        if whole is None:
            await self._receive(received, receive, reservation)
        else:
            received.add(whole)
        named = headers.get(b"content-encoding", b"").lower()
        encoding = next((one for one in ("gzip", "zstd") if one.encode() in named), "")
        if kept or not encoding or not received.size:
            small = received.size <= WHOLE_BYTES
            body: Body = received.whole() if small else received.pieces()
            return body, _plain(scope, received.size, kept)
        packed = received.whole()
        size = await self._inflating.run(inflated_size, encoding, packed, max_bytes)
        if size > SMALL_BYTES:  # before it is inflated, not after
            await reservation.grow_to(size)
        body = inflate(encoding, packed, size)
        if size <= WHOLE_BYTES:
            body = await self._inflating.run(b"".join, body)
        return body, _plain(scope, size, kept)

    async def _receive(
        self, received: ReceivedBody, receive: Receive, reservation: Reservation
    ) -> None:
        now = asyncio.get_running_loop().time
        begun = now()
        # One timer for the whole body: arming one costs as much as receiving a piece.
        with anyio.CancelScope(deadline=begun + self._grace_s) as scope:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                received.add(message.get("body", b""))
                size = received.size
                if size > max(SMALL_BYTES, reservation.held):
                    scope.deadline = math.inf  # the server waits here, not the client
                    waiting_since = now()
                    await reservation.grow_to(size)
                    begun += now() - waiting_since
                if not message.get("more_body", False):
                    return
                if scope.deadline - now() < self._grace_s / 2 or scope.deadline == math.inf:
                    scope.deadline = begun + self._grace_s + size / SLOWEST_BYTES_PER_S
        raise TooSlow("the body arrived too slowly")


def _step_aside(turn: Reservation, expected: Expected) -> None:
    turn.give_back()
    expected.leave()


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
