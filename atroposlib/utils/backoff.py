"""Exponential backoff with jitter. No I/O: the caller sleeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

# A separate generator: a retry must not shift the random numbers of a reproducible run.
uniform = random.Random().random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses of ``initial_s`` seconds, doubled after each failure, at most ``max_s``.

    Example: Backoff(0.5, 10.0) pauses 0.5, 1, 2, 4, 8, 10, 10 ... seconds.
    """

    initial_s: float
    max_s: float

    def pause_s(self, failures: int) -> float:
        """Seconds after the ``failures``-th failure in a row; 0 where there is none."""
        if failures <= 0:
            return 0.0
        # The exponent is bounded because 2.0 ** 1024 overflows.
        return min(self.max_s, self.initial_s * 2.0 ** min(failures - 1, 100))


def with_jitter(pause_s: float, uniform: Callable[[], float] = uniform) -> float:
    """50 % to 100 % of ``pause_s``, so that callers which failed together spread out.

    ``uniform`` returns a number in [0, 1).
    """
    return pause_s * (0.5 + 0.5 * uniform())
