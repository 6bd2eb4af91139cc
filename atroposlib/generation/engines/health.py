"""Health of a server, bounded waits for it, and retries of its calls.

    UNKNOWN --probe ok--> HEALTHY --a call fails--> SUSPECT --probe ok--> HEALTHY
        `--probe fails--> DOWN <--probe fails---------'        DOWN --probe ok--> HEALTHY

Only waiting callers send probes: an idle process sends no probes, and no task outlives its
callers.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.http import NOT_JSON, HttpClient, current_call
from atroposlib.generation.sampling.generation import UNKNOWN_VERSION
from atroposlib.utils.backoff import Backoff, with_jitter
from atroposlib.utils.http.sockets import start_hint

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 10.0
PROBE_INTERVAL_S = 1.0
LOG_INTERVAL_S = 10.0
ANSWERED_S = 5.0  # time after an answer in which no probe is needed
SILENCE_PROBE_S = 2.0  # timeout of a probe while requests run


class FailoverRequired(InferenceUnavailable):
    """The server is down while a different server is available, which should get the call."""


class HealthState(enum.Enum):
    UNKNOWN = "unknown"  # never probed
    HEALTHY = "healthy"  # responded, and no call has failed since
    SUSPECT = "suspect"  # a call failed; the next caller probes before it sends
    DOWN = "down"  # probed, without a usable response


@dataclass(kw_only=True, eq=False)
class HealthMonitor:
    """Health of a server, shared by all its callers."""

    name: str  # its address
    probe: Callable[[], Awaitable[bool]]  # a check; True if the server is healthy
    timeout_s: float  # maximum seconds that a caller waits for a server that is down
    enabled: bool  # False disables probes and waits
    state: HealthState = HealthState.UNKNOWN
    paused: bool = False  # its last answer said that it generates nothing
    old_weights: str | None = None  # why a server that answers is not usable
    waiting_on: str | None = None  # text for status displays; None without waiting callers
    _probed_at: float = float("-inf")
    _answered_at: float = float("-inf")
    _silent_since: float | None = None  # the first probe without an answer
    _logged_at: float = float("-inf")
    _probe_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _recheck: asyncio.Task[bool] | None = None

    @property
    def remedy(self) -> str:
        return start_hint("atropos-infer --model MODEL_DIR", self.name)

    def mark_suspect(self) -> None:
        """Record a failed call that an unavailable server would explain."""
        if self.enabled and self.state is not HealthState.DOWN:
            self.state = HealthState.SUSPECT
            self._probed_at = float("-inf")

    async def wait_until_healthy(self) -> None:
        """Return once the server is healthy.

        Raises InferenceUnavailable after ``timeout_s`` seconds, or FailoverRequired if it is
        down and another server of the route is available.
        """
        if not self.enabled or self.state is HealthState.HEALTHY:
            return
        started = time.monotonic()
        while True:
            if await self._probe_once():
                return
            if current_call.get().others_available():
                raise FailoverRequired(
                    f"inference server {self.name} is down and another one is available"
                )
            waited = time.monotonic() - started
            if waited >= self.timeout_s:
                raise InferenceUnavailable(self._timeout_text())
            self._log_wait(waited)
            await asyncio.sleep(min(PROBE_INTERVAL_S, self.timeout_s - waited))

    def recheck(self) -> None:
        """Probe a server that is down in the background.

        Calls are routed around it, so no call would find out that it recovered.
        """
        idle = self._recheck is None or self._recheck.done()
        due = time.monotonic() - self._probed_at >= PROBE_INTERVAL_S
        if self.state is HealthState.DOWN and idle and due:
            self._recheck = asyncio.get_running_loop().create_task(self._probe_once())

    def note_answer(self, paused: bool = False) -> None:
        """Record an answer to any call."""
        self._answered_at, self._silent_since, self.paused = time.monotonic(), None, paused

    def note_pause(self, paused: bool) -> None:
        """Record whether the server generates nothing, by its answer to a probe."""
        self.paused = paused

    async def silence_s(self) -> float | None:
        """Seconds without an answer, of a server with running requests; None: it answers.

        A generation may take minutes, so a server that has not answered lately is probed.
        """
        began = time.monotonic()
        if not self.enabled or began - self._answered_at < ANSWERED_S:
            return None
        try:
            healthy = await asyncio.wait_for(self.probe(), SILENCE_PROBE_S)
        except asyncio.TimeoutError:
            healthy = False
        if healthy:
            self.note_answer(self.paused)
            return None
        self._silent_since = began if self._silent_since is None else self._silent_since
        return time.monotonic() - self._silent_since

    async def close(self) -> None:
        """Cancel a background probe."""
        if self._recheck is not None:
            self._recheck.cancel()
            await asyncio.gather(self._recheck, return_exceptions=True)
            self._recheck = None

    def report(self, healthy: bool) -> None:
        """Set the state from the result of a check."""
        self.state = HealthState.HEALTHY if healthy else HealthState.DOWN
        if healthy:
            self.waiting_on = None
            self.note_answer(self.paused)

    async def _probe_once(self) -> bool:
        """Probe, unless the last probe is under a second old: 500 waiters send a single probe."""
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

    def _timeout_text(self) -> str:
        if self.old_weights is not None:
            return f"inference server {self.name} {self.old_weights}, for {self.timeout_s:g} s"
        return (
            f"inference server {self.name} did not answer GET /health for "
            f"{self.timeout_s:g} s; {self.remedy} (health_check false: it has none)"
        )

    def _log_wait(self, waited_s: float) -> None:
        bounded = f"{waited_s:.0f} s of at most {self.timeout_s:g} s"
        self.waiting_on = (
            f"inference server {self.name}: no answer, {bounded}; {self.remedy}"
            if self.old_weights is None
            else f"inference server {self.name}: {self.old_weights}, {bounded}"
        )
        if time.monotonic() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            logger.warning("waiting for %s", self.waiting_on)


async def health_answer(http: HttpClient, url: str) -> Mapping[str, Any] | None:
    """The answer to GET ``url``, empty if it is no object; None: none, or a status from 500."""
    try:
        response = await http.send("GET", url, timeout_s=PROBE_TIMEOUT_S)
    except InferenceUnavailable as absent:
        logger.debug("%s: %s", url, absent)
        return None
    if response.status_code >= 500:
        return None
    try:
        answer = response.json()
    except NOT_JSON:  # most servers answer without a body
        return {}
    return answer if isinstance(answer, dict) else {}


def restarted_text(reported: int, announced: int | None) -> str:
    """Why a server that :func:`went_back` gets no calls."""
    held = "no known version" if reported == UNKNOWN_VERSION else f"version {reported}"
    return (
        f"restarted and holds {held}, not {announced}: waiting until the trainer gives it the"
        " current weights"
    )


class CustomHealthCheck:
    """Runs the ``check_server_status_task`` of a backend that overrides it.

    The check may return whether the server is healthy, or set ``server_healthy`` once or in
    an endless loop, as in the original. A loop keeps running in a separate task.
    """

    def __init__(self, check: Callable[[], Awaitable[bool | None]]) -> None:
        self._check = check
        self.task: asyncio.Future[bool | None] | None = None
        self.reported = True  # healthy until the check reports otherwise

    def report(self, healthy: bool) -> None:
        self.reported = healthy

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


class LegacyHealth:
    """Health under the attributes that environments of the original read and set."""

    _parts: Any  # ServerParts of APIServer
    _custom_check: CustomHealthCheck

    @property
    def server_healthy(self) -> bool:
        return self._parts.health.state is not HealthState.DOWN

    @server_healthy.setter
    def server_healthy(self, healthy: bool) -> None:
        self._custom_check.report(healthy)
        self._parts.health.report(healthy)

    @property
    def initialized(self) -> bool:
        return self._parts.health.state is not HealthState.UNKNOWN

    @property
    def check_task(self) -> asyncio.Future[bool | None] | None:
        return self._custom_check.task


T = TypeVar("T")

MAX_ATTEMPTS = 3
BACKOFF = Backoff(initial_s=0.5, max_s=10.0)

# Further exceptions of a backend are rejections or mistakes, which a retry cannot fix.
RETRYABLE_ERRORS = (InferenceUnavailable, ConnectionError, TimeoutError, asyncio.TimeoutError)


async def with_retries(
    attempt: Callable[[], Awaitable[T]], health: HealthMonitor
) -> tuple[T, int]:
    """Result of ``attempt`` and the number of attempts, at most :data:`MAX_ATTEMPTS`.

    After a failed attempt the next attempt waits until the server is healthy: a server that
    restarts delays the call and does not fail it. Raises InferenceUnavailable with the last
    reason.
    """
    failed = 0
    while True:
        try:
            result = await attempt()
            health.note_answer()
            return result, failed + 1
        except RETRYABLE_ERRORS as cause:
            failed += 1
            health.mark_suspect()
            if failed == MAX_ATTEMPTS:
                raise InferenceUnavailable(
                    f"{health.name}: {MAX_ATTEMPTS} attempts failed, the last with: {cause}"
                ) from cause
            logger.warning("%s: attempt %d failed: %s", health.name, failed, cause)
        await asyncio.sleep(with_jitter(BACKOFF.pause_s(failed)))
        await health.wait_until_healthy()
