"""Current wait reason: reported in heartbeats, logged every 10 s."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)
LOG_INTERVAL_S = 10.0
_REASON_CHARS = 20  # these distinguish reasons; counted seconds come later in the text


class WaitStatus:
    """The current wait of ``label``, or None. ``clock`` returns seconds."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._clock = clock
        self.on: str | None = None
        self.since = 0.0
        self._logged_at = 0.0

    def start(self, reason: str, *, usual: bool = False) -> None:
        """Set the wait reason and log it, at the beginning and every 10 s.

        ``usual``: such waits occur in every step, so their beginning is not logged.
        """
        reason = reason.removeprefix("waiting for ")
        now = self._clock()
        if self.on is None or self.on[:_REASON_CHARS] != reason[:_REASON_CHARS]:
            self.since, self._logged_at = now, now if usual else float("-inf")
        self.on = reason
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            logger.info("%s waits for %s (%.0f s so far)", self._label, reason, self.seconds())

    def clear(self) -> None:
        """End the wait."""
        if self.on is not None and self._logged_at > self.since:
            logger.info("%s continues after %.0f s", self._label, self.seconds())
        self.on = None

    def seconds(self) -> float:
        """Duration of the current wait; 0 if there is none."""
        return 0.0 if self.on is None else self._clock() - self.since
