"""Bodies that are being received: their bytes, and the memory that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap

import anyio

from atroposlib.api.codec.formats import WHOLE_BYTES
from atroposlib.api.guards.budget import FairBudget, Reservation
from atroposlib.api.guards.inflate import PIECE_BYTES, BodyTooLarge

# A body shows that it arrives at speed before more than its first bytes is reserved for it, so
# that bodies which are declared large and do not come block no request.
FIRST_BYTES = 256 * 2**10
CHECK_S = 0.2  # between two looks at the bodies, while a request waits for memory
CHECK_BYTES = 64 * 2**10  # a body that brings less between two looks is slow


class ReceivedBody:
    """The received bytes: a large body in pages that return to the system as they are read.

    Freed pieces of it on the heap would stay with the process until all are freed.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._pieces: list[bytes | bytearray] = []
        self._pages: mmap | None = None
        self.size = 0

    def add(self, piece: bytes | bytearray) -> None:
        self.size += len(piece)
        if self.size > self.max_bytes:
            raise BodyTooLarge(f"a body has at most {self.max_bytes} bytes")
        self._pieces.append(piece)
        if self.size > WHOLE_BYTES and self._pages is None:
            self._pages = mmap(-1, self.max_bytes, MAP_PRIVATE | MAP_ANONYMOUS)
        if self._pages is not None:
            self._pages.write(b"".join(self._pieces))
            self._pieces.clear()

    def whole(self) -> bytes | bytearray:
        """All of a small body, or of a compressed body."""
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


class BodyArrival(AbstractContextManager["BodyArrival"]):
    """A body that is being received, and the memory reserved for it."""

    def __init__(self, first: FairBudget, rest: FairBudget, max_bytes: int) -> None:
        self.received = ReceivedBody(max_bytes)
        self.deadline = anyio.CancelScope()  # its end cuts the body off
        self._first = Reservation(first)
        self._rest = Reservation(rest)
        self._size_at_check = 0

    @property
    def held(self) -> int:
        """Bytes reserved."""
        return self._first.held + self._rest.held

    async def reserve(self, size: int) -> None:
        """Hold at least ``size`` bytes, as :meth:`FairBudget.take`."""
        await self._first.grow_to(min(size, FIRST_BYTES))
        await self._rest.grow_to(size - FIRST_BYTES)

    def is_slow(self) -> bool:
        """Whether little was received since the last call."""
        progress = self.received.size - self._size_at_check
        self._size_at_check = self.received.size
        return progress < CHECK_BYTES

    def step_aside(self) -> bool:
        """Reduce the reservation to the received bytes; whether that freed memory."""
        size = self.received.size
        freed = self._first.shrink_to(min(size, FIRST_BYTES))
        return self._rest.shrink_to(max(0, size - FIRST_BYTES)) or freed

    def __exit__(self, *raised: object) -> None:
        self._first.give_back()
        self._rest.give_back()


class BodyMemory:
    """Memory of all bodies: slow senders make room for requests that wait.

    Args:
        max_bytes: the largest body.
        in_flight_bytes: the first bytes of all bodies.
        wait_s: bound on the wait of a request.
    """

    def __init__(self, max_bytes: int, in_flight_bytes: int, wait_s: float) -> None:
        problem = "too many bytes are on their way in; try again later"
        first_bytes = max(in_flight_bytes, 2 * min(max_bytes, FIRST_BYTES))
        self._first = FairBudget(first_bytes, wait_s, problem, self._check_soon)
        self._rest = FairBudget(2 * max_bytes, wait_s, problem, self._check_soon)
        self.receiving: set[BodyArrival] = set()  # a slow body may be cut off
        self._check: asyncio.TimerHandle | None = None

    def arrival(self, max_bytes: int) -> BodyArrival:
        """A body of at most ``max_bytes``, with no memory yet."""
        return BodyArrival(self._first, self._rest, max_bytes)

    def _check_soon(self) -> None:
        if self._check is None:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(CHECK_S, self._make_room)

    def _make_room(self) -> None:
        """Free what slow bodies hold for the requests that wait.

        They keep what they have received. If that is what is missing, the largest is cut off.
        """
        self._check = None
        slow = [arrival for arrival in self.receiving if arrival.is_slow()]
        missing = max(self._first.missing, self._rest.missing)
        if not missing:
            return
        self._check_soon()
        freed = [arrival for arrival in slow if arrival.step_aside()]
        if not freed and sum(arrival.held for arrival in slow) >= missing:
            max(slow, key=lambda arrival: arrival.held).deadline.cancel()
