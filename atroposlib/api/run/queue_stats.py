"""What the store holds, remembered until something changes.

Polls are frequent and changes are few: an environment that asks how long the queue is, or
a trainer that asks for a batch that cannot be formed, costs no call of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic

from atroposlib.api.common.records import EnvEntry, GroupState, StateTotals, StoreStats
from atroposlib.api.common.threads import Pool
from atroposlib.api.decisions.allocation import (
    Supply,
    minima_of,
    minimum_sequences,
    supply_of,
)
from atroposlib.api.decisions.blocked import blocked_reason
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.run.run_cache import SHARED_STORE_LAG_S
from atroposlib.api.store import Store

_NOTHING = StateTotals()


class Holdings:
    """The latest :class:`StoreStats`, read by one caller at a time for all who wait."""

    def __init__(self, store: Store, pool: Pool, metrics: Metrics) -> None:
        self._store = store
        self._pool = pool
        self._metrics = metrics
        self._turn = asyncio.Lock()
        self._changes = 0  # made by this process
        self._seen_changes = -1  # of them are in _stats
        self._stats: StoreStats | None = None
        self._looked_at = 0.0
        self._bytes_since = 0
        self._reason: tuple[StoreStats, object, str | None] | None = None
        self._supply: tuple[StoreStats, Sequence[EnvEntry], int, Supply] | None = None

    def outdated(self) -> None:
        """Something changed: what was read before is not good for later calls."""
        self._changes += 1

    def stored(self, n_bytes: int) -> None:
        """So many payload bytes were added since the last look."""
        self._bytes_since += n_bytes

    async def look(self) -> StoreStats:
        """What is held, as of this call or later."""
        wanted = self._changes
        if (stats := self._known(wanted)) is not None:
            return stats
        async with self._turn:
            if (stats := self._known(wanted)) is not None:
                return stats
            seen, looked_at, added = self._changes, monotonic(), self._bytes_since
            stats = await self._pool.run(lambda: self._metrics.timed(self._store.stats))
            self._stats, self._seen_changes, self._looked_at = stats, seen, looked_at
            self._bytes_since -= added
            return stats

    def _known(self, wanted: int) -> StoreStats | None:
        if self._stats is None or self._seen_changes < wanted:
            return None
        if self._store.shared and monotonic() - self._looked_at > SHARED_STORE_LAG_S:
            return None
        return self._stats

    async def retained_bytes(self, wanted_bytes: int) -> int:
        """Payload bytes on hand: exact where ``wanted_bytes`` more might not fit, an upper
        bound where there is plenty of room, because posts should not pay for a look."""
        if self._stats is not None:
            estimate = self._stats.retained_bytes + self._bytes_since
            if estimate + wanted_bytes <= self._store.max_bytes // 2:
                return estimate
        return (await self.look()).retained_bytes

    def supply(self, stats: StoreStats, live: Sequence[EnvEntry], batch_size: int) -> Supply:
        """``stats`` added up for /status-env; ``live`` is one object until it changes."""
        known = self._supply
        if known and known[0] is stats and known[1] is live and known[2] == batch_size:
            return known[3]
        supply = supply_of(live, stats.group_counts, batch_size)
        self._supply = (stats, live, batch_size, supply)
        return supply

    async def blocked_reason(self, batch_size: int, live: Sequence[EnvEntry]) -> str | None:
        """Why the queued groups hold no batch; None if a claim is worth it."""
        stats = await self.look()
        about = (batch_size, tuple(env.env_id for env in live))
        known = self._reason
        if known is not None and known[0] is stats and known[1] == about:
            return known[2]
        needs = minimum_sequences(minima_of(live), batch_size)
        names = {env.env_id: env.wandb_name for env in live}
        reason = await self._pool.run(
            lambda: blocked_reason(stats.group_counts, batch_size, needs, names)
        )
        self._reason = (stats, about, reason)
        return reason


def sequences_in(stats: StoreStats) -> Mapping[GroupState, int]:
    """Sequences held, by state."""
    sequences = {state: 0 for state in GroupState}
    for group_count in stats.group_counts:
        sequences[group_count.state] += group_count.sequences
    return sequences


def trained_sequences(stats: StoreStats) -> int:
    """Sequences of all batches acked so far in this run."""
    ends = stats.totals
    states = (GroupState.ACKED, GroupState.COMMITTED)
    return sum(ends.get(state, _NOTHING).sequences for state in states)
