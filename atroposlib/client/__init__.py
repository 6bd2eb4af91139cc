"""Clients of the rollout API: :class:`RolloutClient` for trainers and tools, which blocks,
and :class:`AsyncRolloutClient` for environments.

    calls (every verb, pure) -> trainer | environment (send, wait, send again) -> httpx
      '- groups (bodies both ways)      '- patience (how long, how often)

Both survive an API that is absent, full or restarting: a call that got no usable answer is
sent again with growing pauses until ``give_up_after_s``, and each pause is announced. That
is safe because every call is: posts carry an idempotency key, a claim its claim id, an ack
is absorbed. A trainer that was replaced is told so (StaleGeneration) and never registers by itself:
only its owner knows whether it is the one that should go on.
"""

from __future__ import annotations

from atroposlib.client.environment import AsyncRolloutClient
from atroposlib.client.groups import Sent
from atroposlib.client.trainer import LeaseKeeper, RolloutClient

__all__ = ["AsyncRolloutClient", "LeaseKeeper", "RolloutClient", "Sent"]
