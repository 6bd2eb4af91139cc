"""When to try again, how often, and how long to wait in between."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.health import HealthWatch

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_ATTEMPTS = 3
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0

# Whatever else a backend raises is a refusal or a mistake: the same call cannot help.
TRY_AGAIN = (InferenceUnavailable, ConnectionError, TimeoutError, asyncio.TimeoutError)


def backoff_s(failed_attempts: int, uniform: float) -> float:
    """Seconds to wait after the n-th failure: doubling, capped, 50 % to 100 % of it.

    ``uniform`` in 0..1 spreads the callers that failed together.
    """
    ceiling = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (failed_attempts - 1))
    return ceiling * (0.5 + 0.5 * uniform)


async def with_retries(
    attempt: Callable[[], Awaitable[T]], health: HealthWatch
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
        except TRY_AGAIN as cause:
            failed += 1
            health.suspect()
            if failed == MAX_ATTEMPTS:
                raise InferenceUnavailable(
                    f"{health.name}: {MAX_ATTEMPTS} attempts failed, the last with: {cause}"
                ) from cause
            logger.warning("%s: attempt %d failed: %s", health.name, failed, cause)
        await asyncio.sleep(backoff_s(failed, random.random()))
        await health.wait_until_healthy()
