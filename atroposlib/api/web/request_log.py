"""Record of requests for the gate: metrics, and a log line each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from atroposlib.api.run.metrics import Metrics
from atroposlib.utils.command.logs import FIELDS
from atroposlib.utils.http.gate import NO_REPLY, Exchange, RequestFacts

log = logging.getLogger(__name__)

UNKNOWN = "unknown"  # unknown route: a path chosen by a client must not become a label


class RequestLog:
    """Count, time and log requests by their route, without data sent by the client."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    @contextmanager
    def __call__(self, facts: RequestFacts, exchange: Exchange) -> Iterator[None]:
        self._metrics.requests_in_flight.inc()
        try:
            yield
        finally:
            ended = time.monotonic()
            route, status = facts.route or UNKNOWN, exchange.status or NO_REPLY
            seconds = (exchange.endless_since or ended) - exchange.began
            self._metrics.requests_in_flight.dec()
            self._metrics.observe_request(route, facts.method, status, seconds)
            if log.isEnabledFor(level := log_level(status)):
                fields = {
                    "method": facts.method,
                    "route": route,
                    "status": status,
                    "ms": round((ended - exchange.began) * 1000, 1),
                    "bytes_in": exchange.bytes_in,
                    "bytes_out": exchange.bytes_out,
                }
                log.log(level, "request", extra={FIELDS: fields})


def log_level(status: int) -> int:
    """Debug for 2xx and 3xx, info for 4xx and 503, error for any other 5xx."""
    if status < 400:
        return logging.DEBUG
    return logging.ERROR if status >= 500 and status != 503 else logging.INFO
