"""Virtual time: an event loop whose clock jumps to the next timer, and work without threads.

loop       jumps; a loop with nothing scheduled is a failure, not a wait
executor   runs a call after a drawn delay, on the loop
writer     of a store: commits what waits after a drawn delay of the disk
Blocking   blocking code in a thread that alternates with the loop and never runs at the same time
"""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from atroposlib.api.store.sql.writer import Database, Writer, written_result

DAY_S = 86_400.0
TURN_S = 1e-9  # of the loop; without it a wait below the clock's resolution would never end


class Stuck(AssertionError):
    """Nothing is scheduled: every waiting task would wait without end."""


class _Jumps(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout >= DAY_S:
            raise Stuck("nothing is scheduled")
        self.now += max(TURN_S, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The clock starts at 0 and moves while nothing is ready."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Of ``asyncio.to_thread``: in place."""
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)


class Later(Executor):
    """Calls of a thread pool: each runs on the loop, after a delay of up to ``most_s``."""

    def __init__(self, rng: random.Random, most_s: float = 0.005) -> None:
        self._rng, self._most_s = rng, most_s

    def submit(self, call: Any, /, *args: Any, **more: Any) -> Future[Any]:
        reply: Future[Any] = Future()
        work, delay_s = partial(call, *args, **more), self._rng.random() * self._most_s
        asyncio.get_running_loop().call_later(delay_s, _settle, reply, work)
        return reply


class LaterWriter(Writer):
    """A writer without a thread: what waits is committed together, after a delay."""

    def __init__(
        self, database: Database, rng: random.Random, after: Callable[[], None]
    ) -> None:
        super().__init__(database)
        self._rng, self._after = rng, after

    def _start_thread(self) -> threading.Thread:
        return threading.current_thread()

    def do(self, work: Any) -> Any:
        reply = super().submit(work)
        self._drain()
        return written_result(reply)

    def submit(self, work: Any, n_bytes: int = 0) -> Future[Any]:
        reply = super().submit(work, n_bytes)
        asyncio.get_running_loop().call_later(self._rng.random() * 0.02, self._drain)
        return reply

    def _drain(self) -> None:
        while self._waiting:
            self._commit(self._next_operations())
        self._after()

    def close(self) -> None:
        self._open = False
        self._drain()
        self._database.close()


class Blocking:
    """One blocking program. Its :meth:`wait` hands an awaitable to the loop and sleeps."""

    def __init__(self) -> None:
        self._to_thread, self._to_loop = threading.Semaphore(0), threading.Semaphore(0)
        self._asked: Awaitable[Any] | None = None
        self._reply: Future[Any] = Future()

    def wait(self, asked: Awaitable[Any]) -> Any:
        """The result of ``asked``; raises what it raised, a cancellation of ``run`` too."""
        self._asked, self._reply = asked, Future()
        self._to_loop.release()
        self._to_thread.acquire()
        return self._reply.result()

    async def run(self, program: Callable[[], None]) -> None:
        ended: Future[None] = Future()

        def main() -> None:
            self._to_thread.acquire()
            _settle(ended, program)
            self._asked = None
            self._to_loop.release()

        thread = _Alternating(target=partial(copy_context().run, main), daemon=True)
        thread.start()
        while True:
            self._to_thread.release()
            self._to_loop.acquire()  # it runs until it waits or ends
            if self._asked is None:
                break
            try:
                self._reply.set_result(await self._asked)
            except BaseException as error:
                self._reply.set_exception(error)
        thread.join()
        ended.result()


def _settle(reply: Future[Any], call: Callable[[], Any]) -> None:
    try:
        reply.set_result(call())
    except BaseException as error:
        reply.set_exception(error)


class _Alternating(threading.Thread):
    """The only kind of thread in a simulation."""


@contextmanager
def without_threads() -> Iterator[None]:
    """Raise AssertionError where a thread starts: it would run outside of the virtual time."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        assert isinstance(thread, _Alternating), f"thread {thread.name} in a simulation"
        start(thread)

    threading.Thread.start = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


def run_virtual(main: Callable[[], Awaitable[None]]) -> None:
    """Run ``main`` in virtual time; what is left of it is cancelled."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    with without_threads():
        try:
            loop.run_until_complete(main())
        finally:
            with suppress(Stuck):
                left = asyncio.all_tasks(loop)
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
                loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()
