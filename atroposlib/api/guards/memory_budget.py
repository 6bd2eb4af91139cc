"""Bytes that all requests together may hold. Who finds no room waits its turn, bounded."""

from __future__ import annotations

import asyncio
from collections import deque


class NoRoom(Exception):
    """Other requests hold too many bytes, and did not let go of them in time."""


class Room:
    """``size`` bytes, shared first come first served. For one event loop."""

    def __init__(self, size: int, wait_s: float) -> None:
        self._left = size
        self._wait_s = wait_s
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def claim(self) -> Claim:
        """A claim of nothing yet; what it grows to is given back at its end."""
        return Claim(self)

    async def take(self, size: int) -> None:
        """Raises:
        NoRoom: after ``wait_s`` seconds.
        """
        if not self._waiting and size <= self._left:
            self._left -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await asyncio.wait_for(turn, self._wait_s)
        except (asyncio.TimeoutError, asyncio.CancelledError) as end:
            if turn.done() and not turn.cancelled():  # it came in the same instant
                self._left += size
            else:
                self._waiting = deque(one for one in self._waiting if one[1] is not turn)
            self._serve()
            if isinstance(end, asyncio.CancelledError):
                raise
            raise NoRoom("too many bytes are on their way in; try again later") from end

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self._left += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._left:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._left -= size
                turn.set_result(None)


class Claim:
    """What one request holds of a :class:`Room`; a context manager."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    async def grow_to(self, size: int) -> None:
        """Hold ``size`` bytes, or more if it held more already.

        Raises:
            NoRoom: others did not let go of theirs in time.
        """
        if size > self._held:
            await self._room.take(size - self._held)
            self._held = size

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *raised: object) -> None:
        self._room.give(self._held)
        self._held = 0
