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
import time
from collections.abc import Awaitable, Callable

from atroposlib.envs.server_handling.http_path import HttpPath
from atroposlib.errors import InferenceUnavailable

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 10.0
PROBE_EVERY_S = 1.0
SAY_EVERY_S = 30.0


class HealthState(enum.Enum):
    UNKNOWN = "unknown"  # never asked
    HEALTHY = "healthy"  # answered, and no call has failed since
    SUSPECT = "suspect"  # a call failed; the next caller asks before it sends
    DOWN = "down"  # asked, and nothing usable came back


class HealthWatch:
    """One server's health, shared by all its callers.

    Args:
        probe: asks once; True when the server answers.
        bound_s: how long a caller waits for a server that is down.
        enabled: when False nothing is ever asked and nobody waits.
    """

    def __init__(
        self, *, name: str, probe: Callable[[], Awaitable[bool]], bound_s: float, enabled: bool
    ) -> None:
        self.name = name
        self.probe = probe
        self.bound_s = bound_s
        self.enabled = enabled
        self.state = HealthState.UNKNOWN
        self.waiting_on: str | None = None  # for status displays; None when nobody waits
        self._asked_at = float("-inf")
        self._said_at = float("-inf")
        self._one_asks = asyncio.Lock()
        self._recheck: asyncio.Task[bool] | None = None

    def suspect(self) -> None:
        """A call failed in a way that the server's absence would explain."""
        if self.enabled and self.state is not HealthState.DOWN:
            self.state = HealthState.SUSPECT
            self._asked_at = float("-inf")

    async def wait_until_healthy(self) -> None:
        """Return once the server answers.

        Raises:
            InferenceUnavailable: it did not within ``bound_s`` seconds.
        """
        if not self.enabled or self.state is HealthState.HEALTHY:
            return
        started = time.monotonic()
        while True:
            if await self._ask():
                return
            waited = time.monotonic() - started
            if waited >= self.bound_s:
                raise InferenceUnavailable(
                    f"inference server {self.name} did not answer GET /health for "
                    f"{self.bound_s:g} s; start it, or set health_check false if it has none"
                )
            self._say(waited)
            await asyncio.sleep(min(PROBE_EVERY_S, self.bound_s - waited))

    def recheck(self) -> None:
        """Ask a server that is down once more, in the background.

        Callers are routed around it, so nobody else would notice that it came back.
        """
        idle = self._recheck is None or self._recheck.done()
        due = time.monotonic() - self._asked_at >= PROBE_EVERY_S
        if self.state is HealthState.DOWN and idle and due:
            self._recheck = asyncio.get_running_loop().create_task(self._ask())

    async def close(self) -> None:
        """End a recheck that is under way."""
        if self._recheck is not None:
            self._recheck.cancel()
            await asyncio.gather(self._recheck, return_exceptions=True)
            self._recheck = None

    async def answers(self, http: HttpPath, url: str) -> bool:
        """GET ``url`` and call any status under 500 an answer."""
        try:
            response = await http.send("GET", url, timeout_s=PROBE_TIMEOUT_S)
        except InferenceUnavailable as absent:
            logger.debug("%s: %s", self.name, absent)
            return False
        return response.status_code < 500

    async def _ask(self) -> bool:
        """Probe, unless somebody did within the last second: 500 waiters ask as one."""
        async with self._one_asks:
            if self.state is HealthState.HEALTHY:
                return True
            if time.monotonic() - self._asked_at < PROBE_EVERY_S * 0.9:
                return False
            was = self.state
            healthy = await self.probe()
            self._asked_at = time.monotonic()
            self.state = HealthState.HEALTHY if healthy else HealthState.DOWN
            if healthy:
                self.waiting_on = None
                if was is HealthState.DOWN:
                    logger.info("inference server %s answers again", self.name)
            return healthy

    def _say(self, waited_s: float) -> None:
        self.waiting_on = (
            f"inference server {self.name}: no answer, "
            f"{waited_s:.0f} s of at most {self.bound_s:g} s"
        )
        if time.monotonic() - self._said_at >= SAY_EVERY_S:
            self._said_at = time.monotonic()
            logger.warning("waiting for %s", self.waiting_on)
