"""Log line and metrics of each request, by its route."""

from __future__ import annotations

import logging
import time

from atroposlib.api.run.metrics import Metrics
from atroposlib.utils.command.logs import FIELDS
from atroposlib.utils.http.gate import Exchange, RequestFacts

log = logging.getLogger(__name__)

UNKNOWN = "unknown"  # no such route: a path chosen by a client must not become a label


class RequestLog:
    """Record of the gate: metrics, and one log line without data sent by the client.

    Level debug for 2xx and 3xx, info for 4xx and 503, error for other 5xx.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_start(self) -> None:
        self._metrics.requests_in_flight.inc()

    def on_end(self, facts: RequestFacts, exchange: Exchange) -> None:
        ended = time.monotonic()
        route = facts.route or UNKNOWN
        seconds = (exchange.endless_since or ended) - exchange.began
        self._metrics.requests_in_flight.dec()
        self._metrics.observe_request(route, facts.method, exchange.status, seconds)
        if log.isEnabledFor(level := log_level(exchange.status)):
            fields = {
                "method": facts.method,
                "route": route,
                "status": exchange.status,
                "ms": round((ended - exchange.began) * 1000, 1),
                "bytes_in": exchange.bytes_in,
                "bytes_out": exchange.bytes_out,
            }
            log.log(level, "request", extra={FIELDS: fields})


def log_level(status: int) -> int:
    """Level of the log line for a response with this status."""
    if status < 400:
        return logging.DEBUG
    return logging.ERROR if status >= 500 and status != 503 else logging.INFO
