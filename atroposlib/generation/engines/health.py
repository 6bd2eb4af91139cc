"""Whether a server answers, asked only when there is a reason to ask.

    UNKNOWN --probe ok--> HEALTHY --a call fails--> SUSPECT --probe ok--> HEALTHY
        `--probe fails--> DOWN <--probe fails---------'        DOWN --probe ok--> HEALTHY

Only callers that wait do the asking, so an idle process sends nothing and no task outlives
its callers.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.http import HttpClient, current_call

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 10.0
PROBE_INTERVAL_S = 1.0
LOG_INTERVAL_S = 30.0


class FailoverRequired(InferenceUnavailable):
    """The server is down and another one answers, so the caller need not wait for it."""


class HealthState(enum.Enum):
    UNKNOWN = "unknown"  # never asked
    HEALTHY = "healthy"  # answered, and no call has failed since
    SUSPECT = "suspect"  # a call failed; the next caller asks before it sends
    DOWN = "down"  # asked, and nothing usable came back


class HealthMonitor:
    """One server's health, shared by all its callers.

    Args:
        probe: asks once; True when the server answers.
        bound_s: how long a caller waits for a server that is down.
        enabled: when False nothing is ever asked and nobody waits.
    """

    def __init__(
        self,
        *,
        name: str,
        probe: Callable[[], Awaitable[bool]],
        timeout_s: float,
        enabled: bool,
    ) -> None:
        self.name = name
        self.probe = probe
        self.timeout_s = timeout_s
        self.enabled = enabled
        self.state = HealthState.UNKNOWN
        self.waiting_on: str | None = None  # for status displays; None when nobody waits
        self._probed_at = float("-inf")
        self._logged_at = float("-inf")
        self._probe_lock = asyncio.Lock()
        self._recheck: asyncio.Task[bool] | None = None

    def mark_suspect(self) -> None:
        """A call failed in a way that the server's absence would explain."""
        if self.enabled and self.state is not HealthState.DOWN:
            self.state = HealthState.SUSPECT
            self._probed_at = float("-inf")

    async def wait_until_healthy(self) -> None:
        """Return once the server answers.

        Raises:
            InferenceUnavailable: it did not within ``bound_s`` seconds.
            ServerLeft: it is down, and the call may go to another server that is not.
        """
        if not self.enabled or self.state is HealthState.HEALTHY:
            return
        started = time.monotonic()
        while True:
            if await self._probe_once():
                return
            if current_call().others_available():
                raise FailoverRequired(
                    f"inference server {self.name} is down and another one is available"
                )
            waited = time.monotonic() - started
            if waited >= self.timeout_s:
                raise InferenceUnavailable(
                    f"inference server {self.name} did not answer GET /health for "
                    f"{self.timeout_s:g} s; start it, or set health_check false if it has none"
                )
            self._log_wait(waited)
            await asyncio.sleep(min(PROBE_INTERVAL_S, self.timeout_s - waited))

    def recheck(self) -> None:
        """Ask a server that is down once more, in the background.

        Callers are routed around it, so nobody else would notice that it came back.
        """
        idle = self._recheck is None or self._recheck.done()
        due = time.monotonic() - self._probed_at >= PROBE_INTERVAL_S
        if self.state is HealthState.DOWN and idle and due:
            self._recheck = asyncio.get_running_loop().create_task(self._probe_once())

    async def close(self) -> None:
        """End a recheck that is under way."""
        if self._recheck is not None:
            self._recheck.cancel()
            await asyncio.gather(self._recheck, return_exceptions=True)
            self._recheck = None

    def report(self, healthy: bool) -> None:
        """What somebody else found out."""
        self.state = HealthState.HEALTHY if healthy else HealthState.DOWN
        if healthy:
            self.waiting_on = None

    async def _probe_once(self) -> bool:
        """Probe, unless somebody did within the last second: 500 waiters ask as one."""
        async with self._probe_lock:
            if self.state is HealthState.HEALTHY:
                return True
            if time.monotonic() - self._probed_at < PROBE_INTERVAL_S * 0.9:
                return False
            was = self.state
            healthy = await self.probe()
            self._probed_at = time.monotonic()
            self.report(healthy)
            if healthy and was is HealthState.DOWN:
                logger.info("inference server %s is healthy again", self.name)
            return healthy

    def _log_wait(self, waited_s: float) -> None:
        self.waiting_on = (
            f"inference server {self.name}: no answer, "
            f"{waited_s:.0f} s of at most {self.timeout_s:g} s"
        )
        if time.monotonic() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            logger.warning("waiting for %s", self.waiting_on)


async def responds(http: HttpClient, url: str) -> bool:
    """GET ``url`` and call any status under 500 an answer."""
    try:
        response = await http.send("GET", url, timeout_s=PROBE_TIMEOUT_S)
    except InferenceUnavailable as absent:
        logger.debug("%s: %s", url, absent)
        return False
    return response.status_code < 500


class CustomHealthCheck:
    """The check of a backend that overrides ``check_server_status_task``.

    It may return whether the server answers, or set ``server_healthy``, once or for ever as
    the original's did; then it goes on in a task of its own.
    """

    def __init__(self, check: Callable[[], Awaitable[bool | None]]) -> None:
        self._check = check
        self.task: asyncio.Future[bool | None] | None = None
        self.reported = True  # a server counts as healthy until its check says otherwise

    async def probe(self) -> bool:
        if self.task is None or self.task.done():
            self.task = asyncio.ensure_future(self._check())
        await asyncio.wait({self.task}, timeout=PROBE_INTERVAL_S)
        answer = self.task.result() if self.task.done() else None
        return self.reported if answer is None else bool(answer)

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None


T = TypeVar("T")

MAX_ATTEMPTS = 3
INITIAL_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0

# Whatever else a backend raises is a refusal or a mistake: the same call cannot help.
RETRYABLE_ERRORS = (InferenceUnavailable, ConnectionError, TimeoutError, asyncio.TimeoutError)


def backoff_s(failed_attempts: int, uniform: float) -> float:
    """Seconds to wait after the n-th failure: doubling, capped, 50 % to 100 % of it.

    ``uniform`` in 0..1 spreads the callers that failed together.
    """
    ceiling = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0 ** (failed_attempts - 1))
    return ceiling * (0.5 + 0.5 * uniform)


async def with_retries(
    attempt: Callable[[], Awaitable[T]], health: HealthMonitor
) -> tuple[T, int]:
    """The result and the number of attempts, at most :data:`MAX_ATTEMPTS`.

    A failed attempt makes the server suspect, so the next one is sent only once /health
    answers: a server that restarts costs a wait and not the call.

    Raises:
        InferenceUnavailable: every attempt failed; its message has the last reason.
    """
    failed = 0
    while True:
        try:
            return await attempt(), failed + 1
        except RETRYABLE_ERRORS as cause:
            failed += 1
            health.mark_suspect()
            if failed == MAX_ATTEMPTS:
                raise InferenceUnavailable(
                    f"{health.name}: {MAX_ATTEMPTS} attempts failed, the last with: {cause}"
                ) from cause
            logger.warning("%s: attempt %d failed: %s", health.name, failed, cause)
        await asyncio.sleep(backoff_s(failed, random.random()))
        await health.wait_until_healthy()
