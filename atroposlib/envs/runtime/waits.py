"""Waits: their reasons at this moment, and their end by SIGTERM or SIGINT.

first signal    drain finished groups, then exit
second signal   exit now
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from atroposlib.errors import AtroposError
from atroposlib.utils.command.signals import on_signals, reset_and_raise
from atroposlib.wire.status import MAX_WAIT_CHARS, WAIT_CAUSES, WaitCause, WaitReport

logger = logging.getLogger(__name__)
T = TypeVar("T")
LOG_INTERVAL_S = 10.0
_REASON_CHARS = 20  # these distinguish reasons; counted seconds come later in the text


class StopRequested(AtroposError):
    """A signal interrupts a wait."""


class Shutdown:
    """The request to stop this process."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.forced = False  # requested twice: running sends are not waited for
        self.error: AtroposError | None = None  # raised by every wait, if it is set
        self._main: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Handle the signals from now on, if this is the main thread."""
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()

        def handle(number: int) -> None:
            if loop.is_closed():
                reset_and_raise(number)
            else:  # the handler runs between two instructions of any task
                loop.call_soon_threadsafe(self.request, signal.Signals(number).name)

        # Outside the main thread the embedding program handles signals.
        with suppress(ValueError):
            on_signals(handle, signal.SIGTERM, signal.SIGINT)

    def request(self, reason: str) -> None:
        """Request the shutdown; a second call cancels the main task."""
        if self.requested.is_set() and self._main is not None:
            self.forced = True
            self._main.cancel()
        logger.info("%s: running sends are finished first", reason)
        self.requested.set()

    def fail(self, error: AtroposError) -> None:
        """End every wait by ``error``."""
        self.error = error
        self.requested.set()

    async def or_shutdown(self, call: Awaitable[T]) -> T:
        """The result of ``call``.

        Raises StopRequested: a shutdown was requested first; ``call`` is cancelled.
        """
        task, stop = asyncio.ensure_future(call), asyncio.ensure_future(self.requested.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not self.requested.is_set():
                return task.result()
            raise self.error or StopRequested("a signal requested the shutdown")
        finally:
            for pending in (task, stop):
                pending.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def pause(self, seconds: float) -> None:
        """Sleep. Raises StopRequested: a shutdown was requested meanwhile."""
        await self.or_shutdown(asyncio.sleep(seconds))


@dataclass
class _Running:
    """A wait that goes on."""

    reason: str
    since: float
    logged_at: float


class Waits:
    """The waits of ``label`` at this moment, at most a single wait per cause. ``clock`` returns seconds."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._clock = clock
        self._running: dict[WaitCause, _Running] = {}

    def start(self, cause: WaitCause, reason: str, *, usual: bool = False) -> None:
        """Set the reason of a wait and log it, at the beginning and every 10 s.

        ``usual``: the wait occurs in every step, so its beginning is not logged.
        """
        reason = reason.removeprefix("waiting for ")
        now, wait = self._clock(), self._running.get(cause)
        if wait is None or wait.reason[:_REASON_CHARS] != reason[:_REASON_CHARS]:
            wait = _Running(reason, now, now if usual else float("-inf"))
            self._running[cause] = wait
        wait.reason = reason
        if now - wait.logged_at >= LOG_INTERVAL_S:
            wait.logged_at = now
            waited_s = now - wait.since
            logger.info("%s waits for %s (%.0f s so far)", self._label, reason, waited_s)

    def clear(self, *causes: WaitCause) -> None:
        """End the waits of these causes."""
        for cause in causes:
            wait = self._running.pop(cause, None)
            if wait is not None and wait.logged_at > wait.since:
                waited_s = self._clock() - wait.since
                logger.info("%s continues after %.0f s", self._label, waited_s)

    @property
    def on(self) -> str | None:
        """The reason of the outer wait; None without a wait."""
        outer = next((cause for cause in WAIT_CAUSES if cause in self._running), None)
        return None if outer is None else self._running[outer].reason

    def seconds(self, cause: WaitCause) -> float:
        """Duration of the wait for ``cause``; 0 if there is none."""
        wait = self._running.get(cause)
        return 0.0 if wait is None else self._clock() - wait.since

    def report(self) -> list[WaitReport]:
        """All waits as a heartbeat reports them, the outer cause first."""
        return [
            WaitReport(
                cause=cause,
                on=self._running[cause].reason[:MAX_WAIT_CHARS],
                age_s=self.seconds(cause),
            )
            for cause in WAIT_CAUSES
            if cause in self._running
        ]
