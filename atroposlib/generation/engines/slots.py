"""Slots and timings of a server: weighted semaphore, statistics per split.

The rollout API assigns every environment a weight. An environment of weight 0.25 may use a
quarter of the slots. The weight can change while requests are in flight.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from atroposlib.utils.metrics import percentile

RATE_WINDOW_S = 30.0  # longer than most generations: their tokens count when they end
_SPENT: ContextVar[dict[str, float] | None] = ContextVar("spent", default=None)


@contextmanager
def timings() -> Iterator[dict[str, float]]:
    """Seconds that this task and its subtasks spend meanwhile, by name: :func:`spending`."""
    spent: dict[str, float] = {}
    token = _SPENT.set(spent)
    try:
        yield spent
    finally:
        _SPENT.reset(token)


@contextmanager
def spending(name: str) -> Iterator[None]:
    """Add the duration of the block to ``name``, where :func:`timings` collects."""
    started = time.monotonic()
    try:
        yield
    finally:
        if (spent := _SPENT.get()) is not None:
            spent[name] = round(spent.get(name, 0.0) + time.monotonic() - started, 4)


def generated_tokens(result: Any) -> int:
    """Sampled tokens of a call's result: generations, a four-tuple, or OpenAI's with usage."""
    if isinstance(result, tuple):
        return sum(map(len, result[1]))
    if isinstance(result, list):
        return sum(len(output.tokens) for output in result)
    return getattr(getattr(result, "usage", None), "completion_tokens", None) or 0


class AsyncSemWithAdaptiveWeight:
    """First-come-first-served semaphore whose limit may change while slots are held.

    A higher weight wakes waiters at once. A lower weight takes no slot from a holder: released
    slots stay closed until fewer than the new limit are in use.
    """

    def __init__(self, value: int) -> None:
        self.max_val = value
        self.weight = 1.0
        self.in_use = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """Slots that the weight opens, at least 1: without a slot callers might wait forever."""
        # The subtraction keeps 0.1 * 30 = 3.0000000000000004 from opening a fourth slot.
        return max(1, math.ceil(self.max_val * self.weight - 1e-9))

    @property
    def free(self) -> int:
        """Slots open now; 0 while holders exceed a lowered limit."""
        return max(0, self.limit - self.in_use)

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def min_val(self) -> float:
        """Slots that the weight closes, of ``max_val``."""
        return self.max_val * (1.0 - self.weight)

    def locked(self) -> bool:
        return self.free == 0 or self.waiting > 0

    def update_weight(self, weight: float) -> None:
        """Open ``weight`` of the slots; values outside 0..1 count as the nearest bound."""
        self.weight = min(1.0, max(0.0, weight))
        self._wake()

    async def acquire(self) -> Literal[True]:
        if not self.locked():
            self.in_use += 1
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the slot was assigned in the same tick; release it
            elif turn in self._waiters:
                self._waiters.remove(turn)
            raise
        return True

    def release(self) -> None:
        if self.in_use == 0:
            raise ValueError("release() of a slot that nobody holds")
        self.in_use -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiters and self.free:
            turn = self._waiters.popleft()
            if not turn.done():
                self.in_use += 1  # taken for the waiter, so that no later call overtakes it
                turn.set_result(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class SplitStats:
    """Calls of a split (train or eval) of a server: slots, active calls, timings.

    Calls are active from the choice of the server: if only slots counted, a burst of calls that
    wait for the first health check would all choose the same server.
    """

    def __init__(self, capacity: int, remembered: int) -> None:
        self.slots = AsyncSemWithAdaptiveWeight(capacity)
        self.timings_s: deque[float] = deque(maxlen=remembered)
        self.attempts: deque[int] = deque(maxlen=remembered)
        self.active_calls = 0  # waiting for health, for a slot, or running
        self._generated: deque[tuple[float, int]] = deque()  # (monotonic, tokens) of calls

    @property
    def headroom(self) -> int:
        return self.slots.limit - self.active_calls

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count a call as active from the choice of this server."""
        self.active_calls += 1
        try:
            yield
        finally:
            self.active_calls -= 1

    def record(self, seconds: float, attempts: int, tokens: int = 0) -> None:
        self.timings_s.append(seconds)
        self.attempts.append(attempts)
        self.tokens_per_s()  # forgets old calls
        self._generated.append((time.monotonic(), tokens))

    def tokens_per_s(self) -> float:
        """Sampled tokens of the calls that ended within the window, per second of it."""
        while self._generated and self._generated[0][0] < time.monotonic() - RATE_WINDOW_S:
            self._generated.popleft()
        return sum(tokens for _, tokens in self._generated) / RATE_WINDOW_S

    def metrics(self, prefix: str) -> dict[str, float]:
        """Statistics of the kept calls, in seconds; empty without calls."""
        if not self.timings_s:
            return {}
        return {
            f"{prefix}request_time_avg": statistics.fmean(self.timings_s),
            f"{prefix}request_time_std": statistics.pstdev(self.timings_s),
            f"{prefix}request_time_99p": percentile(self.timings_s, 0.99),
            f"{prefix}average_num_attempts": statistics.fmean(self.attempts),
            f"{prefix}retry_rate": statistics.fmean(a > 1 for a in self.attempts),
        }
