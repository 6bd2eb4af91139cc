"""Waits on the event loop: broadcasts, bounded waits, clients that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

# Whether the client of a request has disconnected.
IsDisconnected = Callable[[], Awaitable[bool]]


async def never_disconnects() -> bool:
    """For calls without a client."""
    return False


class BroadcastEvent:
    """Wakes all current subscribers; later subscribers wait for the next notification."""

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None

    def notify(self) -> None:
        if self._next is not None:
            self._next.set()
            self._next = None

    def subscribe(self) -> asyncio.Event:
        """The event of the next :meth:`notify`. Subscribe before reading the state, then wait."""
        if self._next is None:
            self._next = asyncio.Event()
        return self._next


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event; False after ``timeout_s``."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)
    return event.is_set()
