"""Who waits for what inside one API process: threads by kind of work, and wake-up calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Whether the client of a request has hung up.
IsDisconnected = Callable[[], Awaitable[bool]]


async def never_disconnects() -> bool:
    """For callers that have no client."""
    return False


class Threads:
    """Threads for blocking calls. Each kind of work has its own, so that a flood of posts
    leaves some to claims, and a slow disk leaves some to /status."""

    def __init__(self) -> None:
        # Bound by the processor: more only take turns, and its caches from each other.
        self.parsing = Pool(min(4, max(2, os.cpu_count() or 1)))
        self.puts = Pool(32)  # bound by the disk: these share an fsync
        self.batches = Pool(8)
        self.reads = Pool(4)


class Pool:
    """At most ``most`` calls at a time; the others wait without a thread."""

    def __init__(self, most: int) -> None:
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="api")

    async def run(self, call: Callable[[], T]) -> T:
        """The result of ``call``, which runs to its end even if nobody waits any more:
        who is cancelled meanwhile hears of it after that end."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise


class BroadcastEvent:
    """Wakes everybody who waits now; nothing is remembered for those who come later."""

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None

    def notify(self) -> None:
        if self._next is not None:
            self._next.set()
            self._next = None

    def subscribe(self) -> asyncio.Event:
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
