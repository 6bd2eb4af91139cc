"""Bodies that are being received: their bytes, and the memory and turns that they share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap

import anyio

from atroposlib.api.codec.formats import WHOLE_BYTES
from atroposlib.api.guards.inflate import PIECE_BYTES, BodyTooLarge

# A body shows that it arrives at speed before more than its first bytes is reserved for it, so
# that bodies which are declared large and do not come keep no other request waiting.
FIRST_BYTES = 256 * 2**10
CHECK_S = 0.2  # between two looks at the bodies, while a request waits for memory
CHECK_BYTES = 64 * 2**10  # a body that brings less between them is slow


class BudgetExceeded(Exception):
    """Other requests hold too many bytes and did not free them in time."""


class FairBudget:
    """``size`` bytes or turns of all requests, first come first served. For one event loop.

    Args:
        on_wait: called when a request begins to wait.
    """

    def __init__(
        self,
        size: int,
        wait_s: float,
        problem: str,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._left = size
        self._wait_s = wait_s
        self._problem = problem
        self._on_wait = on_wait
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    @property
    def missing(self) -> int:
        """What has to be freed for the first request that waits."""
        return self._waiting[0][0] - self._left if self._waiting else 0

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
        self._on_wait()
        try:
            await asyncio.wait_for(turn, self._wait_s)
        except (asyncio.TimeoutError, asyncio.CancelledError) as end:
            if turn.done() and not turn.cancelled():  # it was granted in the same instant
                self._left += size
            else:
                self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
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
        missing = size - self.held
        if missing > 0:
            await self._budget.take(missing)
            self.held += missing

    def shrink_to(self, size: int) -> bool:
        """Hold at most ``size``; whether that freed something."""
        surplus = self.held - size
        if surplus > 0:
            self.held = size
            self._budget.give(surplus)
        return surplus > 0

    def give_back(self) -> None:
        """Hold nothing."""
        self.shrink_to(0)

    def __exit__(self, *raised: object) -> None:
        self.give_back()


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
        """Hold what was received only; whether that freed something."""
        size = self.received.size
        freed = self._first.shrink_to(min(size, FIRST_BYTES))
        return self._rest.shrink_to(max(0, size - FIRST_BYTES)) or freed

    def __exit__(self, *raised: object) -> None:
        self._first.give_back()
        self._rest.give_back()
