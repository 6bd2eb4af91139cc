"""Exponential backoff with jitter and a deadline. No I/O: the caller sleeps.

attempt fails --> Retrier.pause_s() --> the caller sleeps --> next attempt
                      |-- reset() after progress: the pauses start short again
                      '-- expired: timeout_s passed since the start or the last reset
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

# A separate generator: a retry must not shift the random numbers of a reproducible run.
_JITTER = random.Random()


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


def jittered(pause_s: float, uniform: Callable[[], float] = _JITTER.random) -> float:
    """50 % to 100 % of ``pause_s``, so that callers which failed together spread out.

    ``uniform`` returns a number in [0, 1).
    """
    return pause_s * (0.5 + 0.5 * uniform())


class Retrier:
    """The pauses of one series of attempts, which ends ``timeout_s`` after its last progress."""

    def __init__(self, backoff: Backoff, timeout_s: float = math.inf) -> None:
        self._backoff = backoff
        self._timeout_s = timeout_s
        self.reset()

    def reset(self) -> None:
        """Start over after progress: deadline and pauses as at the beginning."""
        self._started = time.monotonic()
        self._failures = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start or the last reset."""
        return time.monotonic() - self._started

    @property
    def expired(self) -> bool:
        """Whether ``timeout_s`` has passed."""
        return self.elapsed_s >= self._timeout_s

    def pause_s(self, at_least_s: float = 0.0, *, jitter: bool = True) -> float:
        """Seconds to sleep after one more failure; not past the deadline.

        A pause of at least ``at_least_s``, such as a server's Retry-After, has no jitter when
        it is the longer one.
        """
        self._failures += 1
        own = self._backoff.pause_s(self._failures)
        pause = min(max(own, at_least_s), max(0.0, self._timeout_s - self.elapsed_s))
        return jittered(pause) if jitter and own > at_least_s else pause
