"""Calls of the user's synchronous code on the event loop: how long they block it.

A sampler or a gate that takes seconds stops every rollout of its process meanwhile. Each kind of
call that takes longer than BLOCKED_S is logged once; the seconds of all of them are a metric.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)
BLOCKED_S = 1.0  # a shorter stop of all rollouts does not show


@dataclass
class BlockingCalls:
    """Slow calls of an environment's curriculum; ``clock`` returns seconds."""

    label: str
    clock: Callable[[], float] = time.monotonic
    blocked_s: float = 0.0  # of slow calls, since the last metrics
    _logged: set[str] = field(default_factory=set)

    @contextmanager
    def watch(self, call: str) -> Iterator[None]:
        """Measure the block, a call like ``sampler.next``."""
        began = self.clock()
        try:
            yield
        finally:
            took_s = self.clock() - began
            if took_s > BLOCKED_S:
                self._note(call, took_s)

    def _note(self, call: str, took_s: float) -> None:
        self.blocked_s += took_s
        if call not in self._logged:
            self._logged.add(call)
            logger.warning(
                "%s: %s took %.1f s, and every rollout of this process waited meanwhile: "
                "do its slow part once, in __init__, or less often (logged once; the metric is "
                "curriculum/blocked_s)",
                self.label,
                call,
                took_s,
            )

    def metrics(self) -> dict[str, float]:
        """``blocked_s`` since the last call, if there was a slow call."""
        blocked_s, self.blocked_s = self.blocked_s, 0.0
        return {"blocked_s": blocked_s} if blocked_s else {}
