"""What an environment waits for: one word for the heartbeat, one line of the log now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)
SAY_EVERY_S = 30.0
_SAME_CHARS = 20  # the beginning tells waits apart: what follows counts seconds


class Waiting:
    """The current wait of ``label``; None when it waits for nothing. ``clock``: seconds."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._clock = clock
        self.on: str | None = None
        self.since = 0.0
        self._said_at = 0.0

    def waits(self, what: str, *, usual: bool = False) -> None:
        """Say that it waits for ``what``: in the log at the beginning and every 30 s.

        ``usual``: such waits come with every step, so their beginning is not worth a line.
        """
        what = what.removeprefix("waiting for ")
        now = self._clock()
        if self.on is None or self.on[:_SAME_CHARS] != what[:_SAME_CHARS]:
            self.since, self._said_at = now, now if usual else float("-inf")
        self.on = what
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            logger.info("%s waits for %s (%.0f s so far)", self._label, what, self.seconds())

    def over(self) -> None:
        """It waits no more."""
        if self.on is not None and self._said_at > self.since:
            logger.info("%s goes on after %.0f s", self._label, self.seconds())
        self.on = None

    def seconds(self) -> float:
        """How long the current wait has lasted."""
        return 0.0 if self.on is None else self._clock() - self.since
