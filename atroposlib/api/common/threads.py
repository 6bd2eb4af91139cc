"""Thread pools per kind of blocking work, and how calls on the event loop wait for each other."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

GATHER_S = 0.004  # four posts of usual size are parsed in so long
# Turns of the event loop, after which a request that has arrived meanwhile is expected.
LOOKS = 3

# Whether the client of a request has disconnected.
IsDisconnected = Callable[[], Awaitable[bool]]


async def never_disconnects() -> bool:
    """For calls without a client."""
    return False


def _threads(max_calls: int) -> Executor:
    return ThreadPoolExecutor(max_calls, thread_name_prefix="api")


class Threads:
    """Thread pools for blocking calls, one per kind of work: a flood of posts leaves threads
    for claims, and a slow disk leaves threads for /status. ``executor`` makes each."""

    def __init__(self, executor: Callable[[int], Executor] = _threads) -> None:
        # CPU-bound: more threads would only compete for cores and caches.
        self.parsing = Pool(min(4, max(2, os.cpu_count() or 1)), executor)
        self.inflating = Pool(2, executor)
        self.writes = Pool(4, executor)  # disk-bound: concurrent writes share an fsync
        self.batches = Pool(8, executor)
        self.windows = Pool(40, executor)  # of batches that are being sent
        self.reads = Pool(4, executor)


class Pool:
    """At most ``max_calls`` calls at a time; further calls wait without a thread."""

    def __init__(self, max_calls: int, executor: Callable[[int], Executor] = _threads) -> None:
        self._threads = executor(max_calls)

    async def run(self, call: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """The result of ``call``. A cancelled caller waits until ``call`` has ended."""
        return await result_of(self._threads.submit(call, *args, **more))


async def result_of(call: Future[T], timeout_s: float = float("inf")) -> T:
    """The result of a call in another thread. A cancelled caller waits until it has ended.

    Raises:
        concurrent.futures.TimeoutError: it has not ended within ``timeout_s``.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    call.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
    late = None if timeout_s == float("inf") else loop.call_later(timeout_s, ended.set)
    try:  # asyncio.wait costs more, and every post waits for two threads
        await ended.wait()
    except asyncio.CancelledError:
        await ended.wait()
        raise
    finally:
        if late is not None:
            late.cancel()
    return call.result(timeout=0)


class ShortTurns:
    """Context in which a thread that wants Python's lock gets it after ``turn_s``; may be nested.

    While a batch is sent, its reader takes the lock about ten times for each group, each time
    after a whole turn of the event loop. Short turns all the time would cost posts a third more.
    """

    def __init__(self, turn_s: float) -> None:
        self._turn_s = turn_s
        self._entered = 0
        self._usual_s = turn_s

    def __enter__(self) -> None:
        if not self._entered:
            self._usual_s = sys.getswitchinterval()
            sys.setswitchinterval(min(self._turn_s, self._usual_s))
        self._entered += 1

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
            sys.setswitchinterval(self._usual_s)


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


class Gathering:
    """Lets calls that are ready go on together with those under way, to share a transaction.

        expect -> body read -> until_stored -> parsed -> the others are ready -> transaction

    Bodies are not parsed during a transaction: the two threads would take Python's lock from each
    other at each array and each statement, for a seventh of the CPU time of a post.
    It costs no time where nothing else is under way, and at most ``wait_s`` at either wait.
    """

    def __init__(self, wait_s: float = GATHER_S) -> None:
        self._wait_s = wait_s
        self._under_way = 0
        self._ready = BroadcastEvent()
        self._late: asyncio.TimerHandle | None = None
        self._storing = 0
        self._began = 0.0  # of the first of those that are being stored
        self._stored = BroadcastEvent()

    def expect(self) -> Expected:
        """A call is under way; the result follows it. For the thread of the event loop."""
        self._under_way += 1
        return Expected(self)

    def leave(self) -> None:
        """One call less is under way."""
        self._under_way -= 1

    def go_on_if_last(self) -> None:
        """Let those that wait go on, unless other calls are under way."""
        if not self._under_way:
            self._go_on()

    def _go_on(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._ready.notify()

    async def wait(self) -> None:
        """Wait until no call is under way, at most ``wait_s`` after the first that waits."""
        ready = self._ready.subscribe()
        for _ in range(LOOKS):
            if self._under_way:
                break
            await asyncio.sleep(0)
        self.go_on_if_last()
        if ready.is_set():
            await asyncio.sleep(0)  # behind those that waited, in the same turn of the loop
            return
        if self._late is None:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._wait_s, self._go_on)
        await ready.wait()

    def begin_storing(self) -> None:
        """One call more is being stored."""
        if not self._storing:
            self._began = asyncio.get_running_loop().time()
        self._storing += 1

    def end_storing(self) -> None:
        """One call less is being stored."""
        self._storing -= 1
        if not self._storing:
            self._stored.notify()

    async def until_stored(self) -> None:
        """Wait until no call is being stored, at most ``wait_s`` after the first began."""
        if self._storing:
            left_s = self._began + self._wait_s - asyncio.get_running_loop().time()
            if left_s > 0.0:
                await wait_at_most(self._stored.subscribe(), left_s)


class Expected(AbstractContextManager["Expected"], AbstractAsyncContextManager[None]):
    """A call that is under way; a context manager that ends at the latest with it.

    The call is stored inside of its ``async with``, which first waits, once, for the others that
    are under way.
    """

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._under_way = True

    def leave(self) -> None:
        """It is no longer under way, and no other waits for it. Idempotent."""
        if self._left():
            self._gathering.go_on_if_last()

    async def until_stored(self) -> None:
        """As :meth:`Gathering.until_stored`; before it is parsed."""
        await self._gathering.until_stored()

    def _left(self) -> bool:
        left, self._under_way = self._under_way, False
        if left:
            self._gathering.leave()
        return left

    def __exit__(self, *_: object) -> None:
        self.leave()

    async def __aenter__(self) -> None:
        if self._left():
            await self._gathering.wait()
        self._gathering.begin_storing()

    async def __aexit__(self, *_: object) -> None:
        self._gathering.end_storing()


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event; False after ``timeout_s``."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), timeout_s)
    return event.is_set()
