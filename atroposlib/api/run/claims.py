"""Batches go out: claimed, acked, committed, and replayed from a checkpoint.

A claim names itself (``claim_id``), so a repeated call brings the same batch and a call
with another name the next one: a trainer fetches batch n + 1 while it trains on batch n.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from atroposlib.api.common.records import (
    MAX_DELIVERIES,
    Chooser,
    Claim,
    Delivery,
    LeasedBatch,
    RewindResult,
)
from atroposlib.api.common.threads import IsDisconnected, never_disconnects, wait_at_most
from atroposlib.api.decisions.allocation import minima_of, minimum_sequences, shard
from atroposlib.api.decisions.batching import StalenessRule, choose
from atroposlib.api.decisions.run_state import RunRecord, RunState, rebase, start
from atroposlib.api.run.context import Core
from atroposlib.api.run.queue_stats import trained_sequences
from atroposlib.errors import ConfigError, CorruptPayload, StaleGeneration
from atroposlib.wire import ClaimRequest

RECHECK_S = 0.05  # a waiting claim looks at most so often, however fast groups arrive
OPEN_RECHECK_S = 1.0  # and at least so often where the lease of an open batch may end
SHARED_RECHECK_S = 0.25  # or where another replica may take groups in
_LARGEST = 2**63 - 1  # what stores can count to

P = ParamSpec("P")
T = TypeVar("T")


class Claims:
    """Verbs of the trainer."""

    def __init__(self, core: Core, max_deliveries: int = MAX_DELIVERIES) -> None:
        self._core = core
        self._max_deliveries = max_deliveries

    async def claim(
        self, asked: ClaimRequest, is_disconnected: IsDisconnected = never_disconnects
    ) -> Delivery | str:
        """A batch, or why there is none after ``wait_s``.

        Raises:
            NotRegistered: no trainer has registered.
            StaleGeneration: another trainer registered after this one.
            ConfigError: the rank is none of the world's.
        """
        _require_counts(asked.generation)
        if asked.rank is not None and asked.rank >= asked.world_size:
            raise ConfigError(f"rank: lies in 0 .. {asked.world_size - 1}")
        if asked.claim_id is not None and "\0" in asked.claim_id:
            raise ConfigError("claim_id: no NUL character")
        await self._begin(asked.generation)
        now = asyncio.get_running_loop().time
        end = now() + asked.wait_s
        while True:
            changed = self._core.groups_changed.subscribe()
            got = await self._claim_once(asked)
            if isinstance(got, LeasedBatch):
                return self._delivery(got, asked.rank)
            if now() >= end or self._core.stopping or await is_disconnected():
                return got
            pause = min(await self._longest_pause(), end - now())
            if await wait_at_most(changed, max(0.0, pause)):
                await asyncio.sleep(min(RECHECK_S, max(0.0, end - now())))
            await self._core.keeper.refresh_if_old()

    async def _begin(self, generation: int) -> None:
        core = self._core
        await core.keeper.refresh_if_old()
        core.run.registration
        if generation != core.view.generation and core.store.shared:
            await core.keeper.refresh()
        if generation != core.view.generation:
            raise StaleGeneration(
                f"trainer generation {generation} is not {core.view.generation}"
            )
        if core.run.state is RunState.REGISTERED:
            await core.keeper.change(start)
            core.events.publish("started")

    async def _longest_pause(self) -> float:
        if self._core.store.shared:
            return SHARED_RECHECK_S
        open_batches = (await self._core.holdings.look()).batches_open
        return OPEN_RECHECK_S if open_batches else 30.0

    async def _claim_once(self, asked: ClaimRequest) -> LeasedBatch | str:
        core = self._core
        run, size = core.run, core.run.registration.batch_size
        if not (await core.holdings.look()).batches_open:
            reason = await core.holdings.blocked_reason(size, core.live())
            if reason is not None:
                return reason  # the usual answer to a poll; the store was not asked
        claim = Claim(
            generation=asked.generation,
            size=size,
            now=core.clock(),
            lease_s=asked.lease_s,
            claim_id=asked.claim_id,
            world_size=asked.world_size,
            max_deliveries=self._max_deliveries,
        )
        got = await self._blocking(core.store.claim, claim, self._chooser(run))
        core.holdings.outdated()
        if isinstance(got, LeasedBatch):
            core.metrics.delivered(got, run.policy_version)
            core.events.publish("batch", no=got.no, epoch=got.epoch, sequences=got.n_seq)
            if got.dropped:
                core.events.publish("dropped", groups=got.dropped)
                core.room_made.notify()
        return got

    def _chooser(self, run: RunRecord) -> Chooser:
        """What decides about the queue, fixed to the run as it is now."""
        trainer, live = run.registration, self._core.live()
        return partial(
            choose,
            batch_size=trainer.batch_size,
            needs=minimum_sequences(minima_of(live), trainer.batch_size),
            weights={env.env_id: env.weight for env in run.envs},
            names={env.env_id: env.wandb_name for env in live},
            policy=StalenessRule(
                trainer.staleness_policy, trainer.max_staleness, run.policy_version
            ),
        )

    def _delivery(self, batch: LeasedBatch, rank: int | None) -> Delivery:
        if rank is None:
            return Delivery(batch, batch.members)
        return Delivery(batch, shard(batch.members, batch.world_size, rank))

    async def shard_of(self, no: int, generation: int, epoch: int, rank: int) -> Delivery:
        """What ``rank`` trains on, of a batch that another rank claimed.

        Raises:
            StaleGeneration: a later delivery or a newer trainer owns the batch.
            ConfigError: there is no such rank.
        """
        _require_counts(no, generation, epoch)
        batch = await self._blocking(self._core.store.lookup, no, generation, epoch)
        return self._delivery(batch, rank)

    async def ack(self, no: int, generation: int, epoch: int, rank: int | None = None) -> bool:
        """Batch ``no`` was trained on. True for the call that made it so.

        Raises:
            StaleGeneration: a later delivery or a newer trainer owns the batch.
            ConfigError: there is no such rank.
        """
        _require_counts(no, generation, epoch, rank or 0)
        core = self._core
        await core.keeper.refresh_if_old()
        trainer = core.run.trainer
        commit = trainer is None or not trainer.commits
        first = await self._blocking(
            core.store.ack, no, generation, epoch, rank=rank, commit=commit
        )
        if first:
            core.groups_went()
            core.metrics.acked(no)
            core.events.publish("acked", no=no)
        return first

    async def extend(self, no: int, generation: int, epoch: int, lease_s: float) -> None:
        """The step takes longer: the lease ends ``lease_s`` from now.

        Raises:
            StaleGeneration: a later delivery or a newer trainer owns the batch.
        """
        _require_counts(no, generation, epoch)
        until = self._core.clock() + lease_s
        await self._blocking(self._core.store.extend, no, generation, epoch, until)

    async def commit(self, no: int, generation: int) -> int:
        """A durable checkpoint holds all batches up to ``no``; how many that freed.

        Raises:
            StaleGeneration: another trainer registered, or there is no such batch.
        """
        _require_counts(no, generation)
        core = self._core
        freed = await self._blocking(core.store.commit, no, generation)
        core.groups_went()
        core.metrics.committed(freed)
        core.events.publish("committed", no=no, batches=freed)
        return freed

    async def rewind(self, no: int, generation: int) -> RewindResult:
        """Training starts again from the checkpoint that holds batches up to ``no``.

        Raises:
            StaleGeneration: another trainer registered, or there is no such batch.
        """
        _require_counts(no, generation)
        core = self._core
        rewound = await self._blocking(core.store.rewind, no, generation)
        core.groups_went()
        trained = trained_sequences(await core.holdings.look())
        await core.keeper.change(lambda run: rebase(run, trained))
        core.events.publish("rewound", no=no, replayed=rewound.replayed, gone=rewound.gone)
        return rewound

    async def discard(self, batch: LeasedBatch, error: CorruptPayload) -> None:
        """Groups of ``batch`` are damaged: the others are delivered in another one."""
        core = self._core
        await self._blocking(core.store.discard, batch.no, error.gids)
        core.groups_went()
        core.events.publish("corrupt", no=batch.no, groups=len(error.gids))

    async def give_up(self, batch: LeasedBatch) -> None:
        """The reply with ``batch`` did not get through: it need not wait for its lease."""
        with suppress(StaleGeneration):  # claimed again meanwhile
            await self.extend(batch.no, batch.generation, batch.epoch, lease_s=-1.0)
            self._core.groups_changed.notify()

    async def _blocking(self, call: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        timed = self._core.metrics.timed
        return await self._core.threads.batches.run(lambda: timed(call, *args, **more))


def _require_counts(*counts: int) -> None:
    """No generation, batch or epoch is outside of what a store counts to."""
    if not all(0 <= count <= _LARGEST for count in counts):
        raise StaleGeneration("there is no such batch or trainer generation")
