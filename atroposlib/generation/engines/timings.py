"""Slots and timings of one split (train or eval) of one server."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from atroposlib.generation.engines.slots import AsyncSemWithAdaptiveWeight
from atroposlib.utils.metrics import percentile


class Lane:
    """The calls of one split: how many may run, how many there are, how long they took."""

    def __init__(self, capacity: int, remembered: int) -> None:
        self.slots = AsyncSemWithAdaptiveWeight(capacity)
        self.timings_s: deque[float] = deque(maxlen=remembered)
        self.attempts: deque[int] = deque(maxlen=remembered)
        self.entered_calls = 0  # waiting for health, for a slot, or running

    @property
    def headroom(self) -> int:
        return self.slots.limit - self.entered_calls

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a call from the moment it chose this server.

        Counting only slots would send a burst of callers, all still waiting for the first
        health check, to one server.
        """
        self.entered_calls += 1
        try:
            yield
        finally:
            self.entered_calls -= 1

    def record(self, seconds: float, attempts: int) -> None:
        self.timings_s.append(seconds)
        self.attempts.append(attempts)

    def metrics(self, prefix: str) -> dict[str, float]:
        """Figures over the remembered calls; nothing when there were none."""
        if not self.timings_s:
            return {}
        return {
            f"{prefix}request_time_avg": statistics.fmean(self.timings_s),
            f"{prefix}request_time_std": statistics.pstdev(self.timings_s),
            f"{prefix}request_time_99p": percentile(self.timings_s, 0.99),
            f"{prefix}average_num_attempts": statistics.fmean(self.attempts),
            f"{prefix}retry_rate": statistics.fmean(a > 1 for a in self.attempts),
        }
