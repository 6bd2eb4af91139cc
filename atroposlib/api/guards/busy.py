"""Refusals of a busy server: 503 beyond the open requests, and when to call again."""

from __future__ import annotations

import logging
import time

from starlette.responses import JSONResponse, Response

from atroposlib.utils.backoff import with_jitter

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5
_LOG_EVERY_S = 60.0


def retry_after(seconds: float) -> str:
    """A Retry-After of 1 to 2 times ``seconds``, so that callers spread out."""
    return str(round(with_jitter(2 * seconds)))


class BusyReplies:
    """Responses to requests beyond the limit, counted and logged once a minute."""

    def __init__(self) -> None:
        self.count = 0
        self._logged = 0
        self._next_log = 0.0

    def add(self, limit: int) -> Response:
        """Count a request and return the response to it."""
        self.count += 1
        problem = f"more than {limit} requests at once (--max-connections)"
        if time.monotonic() >= self._next_log:
            log.warning(
                "%s: %d refused since the last line", problem, self.count - self._logged
            )
            self._logged = self.count
            self._next_log = time.monotonic() + _LOG_EVERY_S
        headers = {"retry-after": retry_after(RETRY_AFTER_S), "connection": "close"}
        return JSONResponse({"detail": problem, "status": "busy"}, 503, headers)
