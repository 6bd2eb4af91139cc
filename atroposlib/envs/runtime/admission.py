"""Leases: no rollout begins that would be too stale to train on when it is done.

    rollout wanted --POST /lease--> granted: it begins, its lease is extended while it lasts
                                '-> refused: the item is kept, asked for again ASK_AGAIN_S later
    rollout over (sent, dropped, given up) --POST /release

Only where the trainer registered ``max_staleness``: without a bound every answer would be
yes. An API without leases paces by its queue alone, as every API does besides.
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
LEASE_S = 60.0  # what a killed environment holds comes free after this
EXTEND_EVERY_S = LEASE_S / 3
ASK_AGAIN_S = 0.5
_NO_SUCH_ROUTE = (404, 405)


class Admission:
    """The leases of the rollouts under way, one each."""

    def __init__(self, client: AsyncRolloutClient) -> None:
        self._client = client
        self._held: dict[str, float] = {}  # lease id -> when to extend it, monotonic
        self._ask_at = float("-inf")
        self._offered = True  # False once the API turned out to have no leases
        self.refusal: str | None = None  # why the last rollout may not begin yet

    async def admits(
        self,
        lease_id: str,
        who: EnvIdentifier,
        sequences: int,
        *,
        bounded: bool,
        idle: bool,
    ) -> bool:
        """Whether a rollout of so many sequences may begin, under this lease.

        Args:
            bounded: the trainer bounds staleness.
            idle: nothing of this environment is under way. Room for a part of a group is
                then taken for the whole: waiting for more would wait for ever where the
                bound is no multiple of the group.

        Raises:
            UnknownEnv, NotRegistered: the run is over; register again.
        """
        if not bounded or not self._offered:
            self.refusal = None
            return True
        now = time.monotonic()
        if now < self._ask_at:
            return False
        try:
            reply = await self._client.lease(who, sequences, ttl_s=LEASE_S, lease_id=lease_id)
        except RolloutApiRefused as refused:
            if refused.status_code not in _NO_SUCH_ROUTE:
                raise
            logger.info("the rollout API has no leases: paced by its queue alone")
            self._offered, self.refusal = False, None
            return True
        if reply.granted >= sequences or (reply.granted > 0 and idle):
            self._held[lease_id] = now + EXTEND_EVERY_S
            self.refusal = None
            return True
        if reply.granted > 0:
            await self._client.release(lease_id)
        self.refusal = reply.blocked_reason or f"room for {sequences} sequences"
        self._ask_at = now + ASK_AGAIN_S
        return False

    async def settle(self, under_way: Collection[str], who: EnvIdentifier, size: int) -> None:
        """Give back the leases of rollouts that are over, and extend the others in time.

        Raises:
            UnknownEnv, NotRegistered: the run is over; register again.
        """
        over = self._held.keys() - set(under_way)
        for lease_id in over:
            del self._held[lease_id]
        if over:
            self._ask_at = float("-inf")  # there is room again
            await asyncio.gather(*(self._client.release(one) for one in over))
        now = time.monotonic()
        for lease_id in [one for one, due in self._held.items() if due <= now]:
            # An expired one may not be granted again. The rollout goes on: it is paid for.
            await self._client.lease(who, size, ttl_s=LEASE_S, lease_id=lease_id)
            self._held[lease_id] = now + EXTEND_EVERY_S

    def forget(self) -> None:
        """The run is over, and its leases with it."""
        self._held.clear()
        self._ask_at = float("-inf")
