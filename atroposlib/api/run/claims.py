"""Claim, ack, extend, commit and rewind of batches, and GET /batch of the original.

A claim carries a name (``claim_id``). A repeated call with the same name returns the same
batch, and a call with another name returns the next one, so that a trainer can fetch batch
n + 1 while it trains on batch n.
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
    RunRecord,
    RunState,
    SentBatch,
)
from atroposlib.api.common.threads import IsDisconnected, never_disconnects, wait_at_most
from atroposlib.api.decisions.allocation import shard
from atroposlib.api.decisions.batching import StalenessRule, choose
from atroposlib.api.decisions.exact_fill import minima_of, minimum_sequences
from atroposlib.api.decisions.run_state import rebase, sent, start
from atroposlib.api.run.context import ServiceContext, require_plain
from atroposlib.api.run.run_cache import RunView
from atroposlib.errors import ConfigError, CorruptPayload, StaleGeneration
from atroposlib.wire import ClaimRequest

RECHECK_S = 0.05  # minimum between two attempts of a waiting claim
OPEN_RECHECK_S = 1.0  # maximum, while the lease of an open batch may expire
SHARED_RECHECK_S = 0.25  # maximum, where another replica may accept groups
_MAX_COUNT = 2**63 - 1  # the largest integer of a store

P = ParamSpec("P")
T = TypeVar("T")


class Claims:
    """Calls of the trainer; NotRegistered is raised before one has registered.

    Those about a batch raise StaleGeneration if a newer trainer or a later delivery owns it,
    or if there is no such batch; with a rank outside of the world they raise ConfigError.
    """

    def __init__(self, context: ServiceContext, max_deliveries: int = MAX_DELIVERIES) -> None:
        self._context = context
        self._max_deliveries = max_deliveries

    async def claim(
        self, asked: ClaimRequest, is_disconnected: IsDisconnected = never_disconnects
    ) -> Delivery | str:
        """A batch, or the reason why none formed within ``wait_s``."""
        _require_counts(asked.generation)
        if asked.rank is not None and asked.rank >= asked.world_size:
            raise ConfigError(f"rank: lies in 0 .. {asked.world_size - 1}")
        require_plain("claim_id", asked.claim_id)
        await self._begin(asked.generation)
        now = asyncio.get_running_loop().time
        end = now() + asked.wait_s
        while True:
            changed = self._context.groups_changed.subscribe()
            got = await self._claim_once(asked)
            if isinstance(got, LeasedBatch):
                return self._delivery(got, asked.rank)
            if now() >= end or self._context.stopping or await is_disconnected():
                return got
            pause = min(await self._longest_pause(), end - now())
            if await wait_at_most(changed, max(0.0, pause)):
                await asyncio.sleep(min(RECHECK_S, max(0.0, end - now())))
            await self._context.run_cache.refresh_if_old()

    async def _begin(self, generation: int) -> None:
        context = self._context
        await context.run_cache.refresh_if_old()
        context.run.registration
        if generation != context.view.generation and context.store.shared:
            await context.run_cache.refresh()
        if generation != context.view.generation:
            raise StaleGeneration(
                f"trainer generation {generation} is not {context.view.generation}"
            )
        if context.run.state is RunState.REGISTERED:
            await context.run_cache.update(start)
            context.events.publish("started")

    async def _longest_pause(self) -> float:
        if self._context.store.shared:
            return SHARED_RECHECK_S
        open_batches = (await self._context.queue_stats.read()).batches_open
        return OPEN_RECHECK_S if open_batches else 30.0

    async def _claim_once(self, asked: ClaimRequest) -> LeasedBatch | str:
        context = self._context
        run, size = context.run, context.run.registration.batch_size
        if not (await context.queue_stats.read()).batches_open:
            reason = await context.queue_stats.blocked_reason(size, context.live())
            if reason is not None:
                return reason  # the usual reply to a poll, without a call of the store
        claim = Claim(
            generation=asked.generation,
            size=size,
            now=context.clock(),
            lease_s=asked.lease_s,
            claim_id=asked.claim_id,
            world_size=asked.world_size,
            max_deliveries=self._max_deliveries,
        )
        got = await self._blocking(context.store.claim, claim, self._chooser(run))
        context.queue_stats.invalidate()
        if isinstance(got, LeasedBatch):
            context.metrics.delivered(got, run.policy_version)
            context.events.publish("batch", no=got.no, epoch=got.epoch, sequences=got.n_seq)
            if got.dropped:
                context.events.publish("dropped", groups=got.dropped)
                context.space_freed.notify()
        return got

    def _chooser(self, run: RunRecord) -> Chooser:
        """The batching function, bound to the current run."""
        trainer, live = run.registration, self._context.live()
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
        """The shard of ``rank`` of a batch that another rank claimed."""
        _require_counts(no, generation, epoch)
        batch = await self._blocking(self._context.store.lookup, no, generation, epoch)
        return self._delivery(batch, rank)

    async def ack(self, no: int, generation: int, epoch: int, rank: int | None = None) -> bool:
        """Mark batch ``no`` as trained on. True for the first call that does."""
        _require_counts(no, generation, epoch, rank or 0)
        context = self._context
        await context.run_cache.refresh_if_old()
        trainer = context.run.trainer
        commit = trainer is None or not trainer.commits
        first = await self._blocking(
            context.store.ack, no, generation, epoch, rank=rank, commit=commit
        )
        if first:
            context.on_groups_removed()
            context.metrics.acked.inc()
            context.events.publish("acked", no=no)
        return first

    async def extend(self, no: int, generation: int, epoch: int, lease_s: float) -> None:
        """Extend the lease: it ends ``lease_s`` from now."""
        _require_counts(no, generation, epoch)
        until = self._context.clock() + lease_s
        await self._blocking(self._context.store.extend, no, generation, epoch, until)

    async def commit(self, no: int, generation: int) -> int:
        """Free all batches up to ``no``, which a durable checkpoint holds; returns their number."""
        _require_counts(no, generation)
        context = self._context
        freed = await self._blocking(context.store.commit, no, generation)
        context.on_groups_removed()
        context.metrics.committed.inc(freed)
        context.events.publish("committed", no=no, batches=freed)
        return freed

    async def rewind(self, no: int, generation: int) -> RewindResult:
        """Queue again what was acked after batch ``no``, the last one of the checkpoint."""
        _require_counts(no, generation)
        context = self._context
        rewound = await self._blocking(context.store.rewind, no, generation)
        context.on_groups_removed()
        trained = (await context.queue_stats.read()).sequences_trained
        await context.run_cache.update(lambda run: rebase(run, trained))
        context.events.publish("rewound", no=no, replayed=rewound.replayed, gone=rewound.gone)
        return rewound

    async def discard(self, batch: LeasedBatch, error: CorruptPayload) -> None:
        """Dissolve a batch with damaged groups; the others are delivered in a later batch."""
        context = self._context
        await self._blocking(context.store.discard, batch.no, error.gids)
        context.on_groups_removed()
        context.events.publish("corrupt", no=batch.no, groups=len(error.gids))

    async def give_up(self, batch: LeasedBatch) -> None:
        """End the lease of a batch whose reply was not delivered, so that it can be claimed."""
        with suppress(StaleGeneration):  # claimed again meanwhile
            await self.extend(batch.no, batch.generation, batch.epoch, lease_s=-1.0)
            self._context.groups_changed.notify()

    async def _blocking(self, call: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        timed = self._context.metrics.timed
        return await self._context.threads.batches.run(lambda: timed(call, *args, **more))


def _require_counts(*counts: int) -> None:
    """Reject a generation, batch or epoch outside of the range of a store."""
    if not all(0 <= count <= _MAX_COUNT for count in counts):
        raise StaleGeneration("there is no such batch or trainer generation")


LEASE_S = 600.0  # of GET /batch, which has no parameter for it
REPLY_TIMEOUT_S = 2.0  # maximum wait of a GET for the outcome of the previous reply


class LegacyBatchEndpoint:
    """GET /batch for trainers of the original, which neither claim nor ack. One call at a time.

    They read one batch after another and send nothing back. So the next GET acks the previous
    batch if its reply was sent whole, and returns the same batch again otherwise. Bytes in the
    socket buffers of a client that died count as sent, and a kill between the last byte and the
    record of it delivers once more: at least once, not exactly once. ``/batches/claim`` is
    exact.
    """

    def __init__(self, context: ServiceContext, claims: Claims) -> None:
        self._context = context
        self._claims = claims
        self._turn = asyncio.Lock()
        self._settled: asyncio.Event | None = None  # of the last reply
        # So that an empty poll makes no call of the store.
        self._acked: SentBatch | None = None

    async def next_batch(
        self, is_disconnected: IsDisconnected
    ) -> tuple[Delivery, asyncio.Event] | None:
        """Ack the previous batch if its reply was delivered, and claim the next one.

        A GET waits until the outcome of the previous reply is known, because a client with a
        new connection per call can be faster than the record that all bytes were sent. The
        sender of the delivery sets the returned event when its outcome is known.
        """
        async with self._turn:
            if self._settled is not None:
                await wait_at_most(self._settled, REPLY_TIMEOUT_S)
            await self._context.run_cache.refresh_if_old()
            view = self._context.view
            view.run.registration
            last = await self._ack_sent(view)
            asked = ClaimRequest(
                generation=view.generation,
                lease_s=LEASE_S,
                wait_s=0.0,
                claim_id=f"get-batch-after-{last}",
                world_size=1,
                rank=None,
            )
            got = await self._claims.claim(asked, is_disconnected)
            if isinstance(got, str):
                self._settled = None
                return None
            self._settled = asyncio.Event()
            return got, self._settled

    async def _ack_sent(self, view: RunView) -> int:
        """Number of the last batch that was delivered whole to this trainer; 0 if none was."""
        last = view.run.sent
        if last is None or last.generation != view.generation:
            return 0
        if last != self._acked:
            with suppress(StaleGeneration):  # delivered again since then: the claim returns it
                await self._claims.ack(last.no, last.generation, last.epoch)
            self._acked = last
        return last.no

    async def note_sent(self, batch: LeasedBatch) -> None:
        """Record that the reply with ``batch`` was sent whole."""
        got = SentBatch(no=batch.no, epoch=batch.epoch, generation=batch.generation)

        def noted(run: RunRecord) -> RunRecord:
            # A trainer that registered meanwhile has another last batch; this one is stale.
            return sent(run, got) if self._context.view.generation == got.generation else run

        await self._context.run_cache.update(noted)
