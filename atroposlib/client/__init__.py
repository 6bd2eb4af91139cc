"""Clients of the rollout API: :class:`RolloutClient` for trainers and tools, which blocks,
and :class:`AsyncRolloutClient` for environments.

    api_calls (calls, answers, retry policy) -> trainer | environment (send, wait) -> httpx
      '- groups (bodies both ways)

Both survive an API that is absent, full or restarting. A call without a usable answer is
retried with growing pauses until ``give_up_after_s``, and each pause is reported to
``on_wait``. Retries are safe because every call is idempotent: posts carry an idempotency
key, a claim its claim id, and a repeated ack is absorbed. A trainer that was replaced gets
StaleGeneration and does not register again.
"""

from __future__ import annotations

from atroposlib.client.environment import AsyncRolloutClient
from atroposlib.client.groups import Sent
from atroposlib.client.lease import LeaseKeeper
from atroposlib.client.trainer import RolloutClient

__all__ = ["AsyncRolloutClient", "LeaseKeeper", "RolloutClient", "Sent"]
