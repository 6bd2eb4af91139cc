"""Thread pools, a pool per kind of blocking work, and the results of their calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def _threads(max_calls: int) -> Executor:
    return ThreadPoolExecutor(max_calls, thread_name_prefix="api")


class Threads:
    """Thread pools for blocking calls, a pool per kind of work: a flood of posts leaves threads
    for claims, and a slow disk leaves threads for /status. ``executor`` makes each."""

    def __init__(self, executor: Callable[[int], Executor] = _threads) -> None:
        # CPU-bound: more threads would only compete for cores and caches.
        self.parsing = Pool(min(4, max(2, os.cpu_count() or 1)), executor)
        self.inflating = Pool(2, executor)
        self.writes = Pool(4, executor)  # disk-bound: concurrent writes share an fsync
        self.batches = Pool(8, executor)
        self.windows = Pool(40, executor)  # windows are of batches that are being sent
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
