"""SIGTERM and SIGINT: asked once, finish what is paid for; asked twice, leave at once."""

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


class Stopping:
    """Whether somebody asked this process to stop, and waits that notice."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.in_a_hurry = False  # asked twice: sends are not waited for
        self._main: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Handle the signals from now on, where this is the main thread."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self.ask, number.name)
            except (ValueError, NotImplementedError, RuntimeError):
                return  # not the main thread: whoever embeds us handles signals

    def ask(self, why: str) -> None:
        """Ask to stop."""
        if self.asked.is_set() and self._main is not None:
            self.in_a_hurry = True
            self._main.cancel()
        logger.info("%s: sends under way are finished first", why)
        self.asked.set()

    async def unless_asked(self, call: Awaitable[T]) -> T:
        """The result of ``call``.

        Raises:
            StopRequested: as soon as somebody asks to stop; ``call`` is cancelled.
        """
        task, stop = asyncio.ensure_future(call), asyncio.ensure_future(self.asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not self.asked.is_set():
                return task.result()
            raise StopRequested("a signal asked to stop")
        finally:
            for pending in (task, stop):
                pending.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def pause(self, seconds: float) -> None:
        """Sleep, unless asked to stop."""
        await self.unless_asked(asyncio.sleep(seconds))
