"""Pool of math verifiers, so that a slow check does not delay the others."""

from __future__ import annotations

import asyncio
import logging

from atroposlib.envs.reward_fns.math_verify.checker import (
    CheckFailed,
    Correctness,
    MathVerifier,
)

logger = logging.getLogger(__name__)


class VerifierPool:
    """``size`` math verifiers; each starts its process when it is first needed.

    Args:
        timeout_s: limit of one check.
    """

    def __init__(self, size: int, timeout_s: float = 10.0) -> None:
        self._all = [MathVerifier(timeout_s) for _ in range(size)]
        self._idle: asyncio.LifoQueue[MathVerifier] = asyncio.LifoQueue()
        for verifier in reversed(self._all):  # the first is taken first and stays running
            self._idle.put_nowait(verifier)

    async def check(self, text: str, gold: str) -> Correctness | None:
        """Whether the boxed answer of ``text`` equals ``gold``.

        None: the check failed or took too long, so the result is unknown.
        """
        verifier = await self._idle.get()
        try:
            return await verifier.check(text, gold)
        except CheckFailed as failure:
            logger.warning("%s", failure)
            return None
        finally:
            self._idle.put_nowait(verifier)

    async def close(self) -> None:
        """End every process."""
        for verifier in self._all:
            await verifier.close()
