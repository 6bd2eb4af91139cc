"""Admission of rollouts by the rollout API, so that no rollout ends too stale for training.

    rollout wanted --POST /admission--> granted: it begins; the admission is extended meanwhile
                                    '-> refused: the item is kept; next request in ASK_AGAIN_S
    rollout over (sent, dropped, given up) --POST /admission/release

Used only if the trainer registered ``max_staleness``: without a bound every request would be
granted. With an API without this route, the queue alone limits the rollouts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from atroposlib.client import AsyncRolloutClient
from atroposlib.errors import RolloutApiRefused
from atroposlib.wire import EnvIdentifier

logger = logging.getLogger(__name__)
ADMISSION_TTL_S = 60.0  # admissions of a killed environment expire after this
EXTEND_EVERY_S = ADMISSION_TTL_S / 3
ASK_AGAIN_S = 0.5
_NO_SUCH_ROUTE = (404, 405)


class RolloutAdmission:
    """The admissions of the rollouts under way, an admission each."""

    def __init__(self, client: AsyncRolloutClient) -> None:
        self._client = client
        self._held: dict[str, float] = {}  # admission id -> when to extend it, monotonic
        self._ask_at = float("-inf")
        self._offered = True  # False: the API has no admission route
        self.refusal: str | None = None  # why the last rollout may not begin yet

    async def admits(
        self,
        admission_id: str,
        who: EnvIdentifier,
        sequences: int,
        *,
        bounded: bool,
        idle: bool,
    ) -> bool:
        """Request admission of a rollout; return whether it may begin.

        Args:
            bounded: the trainer bounds staleness.
            idle: no rollout runs here. Room for a part of a group then admits it whole: a bound
                that is no multiple of the group size never has more.

        Raises UnknownEnv, NotRegistered: the run is over; register again.
        """
        if not bounded or not self._offered:
            self.refusal = None
            return True
        now = time.monotonic()
        if now < self._ask_at:
            return False
        try:
            reply = await self._client.request_admission(
                who, sequences, ttl_s=ADMISSION_TTL_S, admission_id=admission_id
            )
        except RolloutApiRefused as refused:
            if refused.status_code not in _NO_SUCH_ROUTE:
                raise
            logger.info("the rollout API has no admission control: paced by its queue alone")
            self._offered, self.refusal = False, None
            return True
        if reply.granted >= sequences or (reply.granted > 0 and idle):
            self._held[admission_id] = now + EXTEND_EVERY_S
            self.refusal = None
            return True
        if reply.granted > 0:
            await self._client.release_admission(admission_id)
        self.refusal = reply.blocked_reason or f"room for {sequences} sequences"
        self._ask_at = now + ASK_AGAIN_S
        return False

    async def settle(self, under_way: Collection[str], who: EnvIdentifier, size: int) -> None:
        """Release the admissions of ended rollouts, and extend the remaining admissions in time.

        Raises UnknownEnv, NotRegistered: the run is over; register again.
        """
        over = self._held.keys() - set(under_way)
        for admission_id in over:
            del self._held[admission_id]
        if over:
            self._ask_at = float("-inf")  # room was released
            await asyncio.gather(
                *(self._client.release_admission(admission) for admission in over)
            )
        now = time.monotonic()
        for admission_id in [held for held, due in self._held.items() if due <= now]:
            # The API may refuse an expired admission. Its rollout continues, because its
            # generation has begun.
            await self._client.request_admission(
                who, size, ttl_s=ADMISSION_TTL_S, admission_id=admission_id
            )
            self._held[admission_id] = now + EXTEND_EVERY_S

    def forget(self) -> None:
        """Discard all admissions, after the end of their run."""
        self._held.clear()
        self._ask_at = float("-inf")
