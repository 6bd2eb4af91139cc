"""Who may run beside whom inside one API process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Many pass together, or one passes alone.

    Posts and claims pass together, so their commits share an fsync. A transition of the
    run passes alone: a group checked against one run must not land in the next.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._turn = asyncio.Lock()
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        async with self._turn:
            self._inside += 1
            self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._turn:  # nobody else enters from here on
            await self._empty.wait()
            yield


class Signal:
    """Wakes everybody who waits now; nothing is remembered for those who come later."""

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None

    def fire(self) -> None:
        if self._next is not None:
            self._next.set()
            self._next = None

    def armed(self) -> asyncio.Event:
        """The event of the next :meth:`fire`. Take it before looking, then wait on it."""
        if self._next is None:
            self._next = asyncio.Event()
        return self._next


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event came in time."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except asyncio.TimeoutError:
        return False
    return True
