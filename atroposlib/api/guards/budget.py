"""Budgets of bytes and of turns that all requests share, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager


class BudgetExceeded(Exception):
    """Error: earlier requests hold too many bytes and did not free their share in time."""


class FairBudget:
    """``size`` bytes or turns of all requests, first come first served. For a single event loop.

    Args:
        on_wait: called when a request begins to wait.
    """

    def __init__(
        self,
        size: int,
        wait_s: float,
        problem: str,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._left = size
        self._wait_s = wait_s
        self._problem = problem
        self._on_wait = on_wait
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    @property
    def missing(self) -> int:
        """Bytes that have to be freed for the first request that waits."""
        return self._waiting[0][0] - self._left if self._waiting else 0

    async def take(self, size: int) -> None:
        """Take ``size`` of it.

        Raises:
            BudgetExceeded: earlier requests did not free their share within ``wait_s``.
        """
        if not self._waiting and size <= self._left:
            self._left -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._on_wait()
        try:
            await asyncio.wait_for(turn, self._wait_s)
        except (asyncio.TimeoutError, asyncio.CancelledError) as end:
            if turn.done() and not turn.cancelled():  # it was granted in the same instant
                self._left += size
            else:
                self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
            self._serve()
            if isinstance(end, asyncio.CancelledError):
                raise
            raise BudgetExceeded(self._problem) from end

    def give(self, size: int) -> None:
        """Free ``size`` of it."""
        self._left += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._left:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._left -= size
                turn.set_result(None)


class Reservation(AbstractContextManager["Reservation"]):
    """Bytes that a request holds of ``budget``; a context manager that frees the bytes."""

    def __init__(self, budget: FairBudget) -> None:
        self._budget = budget
        self.held = 0

    async def grow_to(self, size: int) -> None:
        """Hold at least ``size``, as :meth:`FairBudget.take`."""
        missing = size - self.held
        if missing > 0:
            await self._budget.take(missing)
            self.held += missing

    def shrink_to(self, size: int) -> bool:
        """Hold at most ``size``; whether that freed something."""
        surplus = self.held - size
        if surplus > 0:
            self.held = size
            self._budget.give(surplus)
        return surplus > 0

    def give_back(self) -> None:
        """Hold nothing."""
        self.shrink_to(0)

    def __exit__(self, *raised: object) -> None:
        self.give_back()
