"""Bodies that are being received: their bytes, and the memory reserved for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap

import anyio

from atroposlib.api.codec.formats import WHOLE_BYTES
from atroposlib.api.guards.budget import FairBudget, Reservation
from atroposlib.api.guards.inflate import PIECE_BYTES, BodyTooLarge

# A body shows that it arrives at speed before more than its first bytes is reserved for it, so
# that bodies which are declared large and do not come keep no other request waiting.
FIRST_BYTES = 256 * 2**10
CHECK_S = 0.2  # between two looks at the bodies, while a request waits for memory
CHECK_BYTES = 64 * 2**10  # a body that brings less between them is slow


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


class Arrival(AbstractContextManager["Arrival"]):
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
