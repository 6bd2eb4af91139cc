"""Shutdown on SIGTERM and SIGINT, and waits that end with it.

first signal    drain finished groups, then exit
second signal   exit now
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable
from typing import TypeVar

from atroposlib.errors import AtroposError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class StopRequested(AtroposError):
    """A signal interrupts a wait."""


class Shutdown:
    """The request to stop this process."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = False  # requested twice: running sends are not waited for
        self._main: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Handle the signals from now on, if this is the main thread."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self.request, number.name)
            except (ValueError, NotImplementedError, RuntimeError):
                return  # not the main thread: the embedding program handles signals

    def request(self, reason: str) -> None:
        """Request the shutdown; a second call cancels the main task."""
        if self.requested.is_set() and self._main is not None:
            self.forced = True
            self._main.cancel()
        logger.info("%s: running sends are finished first", reason)
        self.requested.set()

    async def or_shutdown(self, call: Awaitable[T]) -> T:
        """The result of ``call``.

        Raises:
            StopRequested: a shutdown was requested first; ``call`` is cancelled.
        """
        task, stop = asyncio.ensure_future(call), asyncio.ensure_future(self.requested.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not self.requested.is_set():
                return task.result()
            raise StopRequested("a signal requested the shutdown")
        finally:
            for pending in (task, stop):
                pending.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def pause(self, seconds: float) -> None:
        """Sleep.

        Raises:
            StopRequested: a shutdown was requested meanwhile.
        """
        await self.or_shutdown(asyncio.sleep(seconds))
