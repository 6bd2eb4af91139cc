"""Cached statistics of the store, and the reason why the next claim gets no batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic

from atroposlib.api.common.pools import Pool
from atroposlib.api.common.records import StoreStats
from atroposlib.api.common.run_record import EnvEntry, RunRecord
from atroposlib.api.decisions.allocation import Supply, supply_of, unmet_minima
from atroposlib.api.decisions.blocked import Situation, blocked_reason, starved, uncommitted
from atroposlib.api.decisions.exact_fill import minima_of, minimum_sequences
from atroposlib.api.decisions.staleness import StalenessRule
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.run.run_cache import SHARED_STORE_LAG_S
from atroposlib.api.store import Store
from atroposlib.api.store.sql.claim import OlderThan
from atroposlib.api.store.sql.run import Admitted

QUICK_SUMS = 4096  # kinds of groups x size of a batch, searched in less than a ms


class QueueStats:
    """The latest :class:`StoreStats`, cached until a change; a read serves all waiting calls.

    Polls are frequent and changes are few: a poll of the queue length, or a claim when no
    batch can form, makes no call of the store.
    """

    def __init__(self, store: Store, pool: Pool, metrics: Metrics) -> None:
        self._store = store
        self._pool = pool
        self._metrics = metrics
        self._turn = asyncio.Lock()
        self._changes = 0  # made by this process
        self._seen_changes = -1  # changes that are in _stats
        self._stats: StoreStats | None = None
        self._read_at = 0.0
        self._bytes_since = 0
        self._reason: tuple[StoreStats, object, str | None, list[str]] | None = None
        self._supply: tuple[StoreStats, Sequence[EnvEntry], int, Supply] | None = None

    def invalidate(self) -> None:
        """The store changed: later calls read it again."""
        self._changes += 1

    def added(self, n_bytes: int) -> None:
        """Count payload bytes that were added since the last read."""
        self._bytes_since += n_bytes

    async def read(self) -> StoreStats:
        """Statistics of the store, as of this call or later."""
        wanted = self._changes
        if (stats := self._known(wanted)) is not None:
            return stats
        async with self._turn:
            if (stats := self._known(wanted)) is not None:
                return stats
            seen, looked_at, added = self._changes, monotonic(), self._bytes_since
            stats = await self._pool.run(self._metrics.timed, "stats", self._store.stats)
            self._stats, self._seen_changes, self._read_at = stats, seen, looked_at
            self._bytes_since -= added
            return stats

    def _known(self, wanted: int) -> StoreStats | None:
        late = self._store.shared and monotonic() - self._read_at > SHARED_STORE_LAG_S
        return None if late or self._seen_changes < wanted else self._stats

    async def retained_bytes(self, wanted_bytes: int) -> int:
        """Payload bytes in the store.

        Exact where ``wanted_bytes`` more might not fit. Otherwise an upper bound, so that
        posts do not pay for a read of the store.
        """
        if self._stats is not None:
            estimate = self._stats.retained_bytes + self._bytes_since
            if estimate + wanted_bytes <= self._store.max_bytes // 2:
                return estimate
        return (await self.read()).retained_bytes

    async def credit_bytes(self) -> int:
        """Payload bytes that would still be accepted, approximately."""
        return max(0, self._store.max_bytes - await self.retained_bytes(0))

    def supply(self, stats: StoreStats, live: Sequence[EnvEntry], batch_size: int) -> Supply:
        """``stats`` summed for /status-env. ``live`` is the same object until it changes."""
        known = self._supply
        if known and known[0] is stats and known[1] is live and known[2] == batch_size:
            return known[3]
        supply = supply_of(live, stats.group_counts, batch_size)
        self._supply = (stats, live, batch_size, supply)
        return supply

    async def unmet_minima(
        self, run: RunRecord, live: Sequence[EnvEntry], now: float
    ) -> dict[int, int]:
        """Sequences that the next batch still lacks, by environment with a minimum."""
        needs = minimum_sequences(minima_of(live), run.registration.batch_size)
        if not needs:  # as in most runs: an admission reads nothing more
            return {}
        stats = await self.read()
        admitted = await self._pool.run(self._store.ask, Admitted(now))
        return unmet_minima(needs, stats.group_counts, admitted)

    async def blocked_reason(
        self, run: RunRecord, live: Sequence[EnvEntry], now: float
    ) -> tuple[str | None, list[str]]:
        """Why the next claim gets no new batch, or None; and warnings."""
        stats, trainer = await self.read(), run.registration
        admitted: Mapping[int | None, int] = {}
        if trainer.max_staleness is not None:
            admitted = await self._pool.run(self._store.ask, Admitted(now))
        about = (run, tuple(env.env_id for env in live), admitted)
        known = self._reason
        if known is not None and known[0] is stats and known[1] == about:
            return known[2], known[3]
        rule, stale = StalenessRule.of(run), {}
        if rule.policy == "drop" and (oldest := rule.oldest_version) is not None:
            stale = dict(await self._pool.run(self._store.ask, OlderThan(oldest)))
        situation = Situation.of(run, live, self._store.max_bytes, stale, admitted)
        search = partial(blocked_reason, stats, situation)
        is_quick = len(stats.group_counts) * situation.batch_size <= QUICK_SUMS
        reason = search() if is_quick else await self._pool.run(search)
        warnings = starved(stats, situation.batch_size, situation.names)
        warnings += uncommitted(stats, self._store.max_bytes)
        self._reason = (stats, about, reason, warnings)
        return reason, warnings
