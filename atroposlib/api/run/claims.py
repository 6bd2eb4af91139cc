"""Claim, ack, extend, commit and rewind of batches, and GET /batch of the original.

A claim carries a name (``claim_id``). A repeated call with the same name returns the same
batch, and a call with a new name returns the next batch, so that a trainer can fetch batch
n + 1 while it trains on batch n.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from atroposlib.api.archive.records import notes_in
from atroposlib.api.common.records import (
    MAX_DELIVERIES,
    Chooser,
    Claim,
    CommitResult,
    Delivery,
    LeasedBatch,
    ReplyState,
    RewindResult,
    Selection,
)
from atroposlib.api.common.run_record import RunRecord, RunState
from atroposlib.api.common.waiting import (
    BroadcastEvent,
    IsDisconnected,
    never_disconnects,
    wait_at_most,
)
from atroposlib.api.decisions.allocation import shard
from atroposlib.api.decisions.batching import choose
from atroposlib.api.decisions.blocked import is_full
from atroposlib.api.decisions.exact_fill import minima_of, minimum_sequences
from atroposlib.api.decisions.run_state import rebase, require_polled, start
from atroposlib.api.decisions.staleness import StalenessRule
from atroposlib.api.decisions.stalled import with_stalled
from atroposlib.api.decisions.steering import held_back, weights_in_force
from atroposlib.api.run.context import ServiceContext
from atroposlib.api.run.run_cache import MAX_ATTEMPTS, require_plain
from atroposlib.api.store.sql.ack import (
    Ack,
    ClaimInTurn,
    Commit,
    Discard,
    DropDead,
    EndTurn,
    Extend,
    Lookup,
    Revive,
    Rewind,
    last_turn,
)
from atroposlib.api.store.sql.claim import ClaimBatch
from atroposlib.api.store.sql.writer import Work, work_name
from atroposlib.errors import ConfigError, CorruptPayload, RunChanged, StaleGeneration
from atroposlib.wire import ClaimRequest

logger = logging.getLogger(__name__)

RECHECK_S = 0.05  # minimum between two attempts of a waiting claim
OPEN_RECHECK_S = 1.0  # maximum, while the lease of an open batch may expire
SHARED_RECHECK_S = 0.25  # maximum, where another replica may accept groups
_MAX_COUNT = 2**63 - 1  # the largest integer of a store

T = TypeVar("T")


class Claims:
    """Calls of the trainer; NotRegistered is raised before a trainer has registered.

    Calls about a batch raise StaleGeneration if a newer trainer or a later delivery owns it,
    or if the batch does not exist; with a rank outside of the world they raise ConfigError.
    """

    def __init__(self, context: ServiceContext, max_deliveries: int = MAX_DELIVERIES) -> None:
        self._context = context
        self._max_deliveries = max_deliveries

    async def claim(
        self,
        asked: ClaimRequest,
        is_disconnected: IsDisconnected = never_disconnects,
        in_turn: bool = False,
    ) -> Delivery | str:
        """A batch, or the reason why none formed within ``wait_s``; ``in_turn`` for GET /batch."""
        _require_counts(asked.generation)
        if asked.rank is not None and asked.rank >= asked.world_size:
            raise ConfigError(f"rank: lies in 0 .. {asked.world_size - 1}")
        require_plain("claim_id", asked.claim_id)
        await self._begin(asked.generation, in_turn)
        now = asyncio.get_running_loop().time
        end = now() + asked.wait_s
        while True:
            changed = self._context.groups_changed.subscribe()
            got = await self._claim_once(asked, in_turn)
            if isinstance(got, LeasedBatch):
                return self._delivery(got, asked.rank)
            if now() >= end or self._context.stopping or await is_disconnected():
                return with_stalled(got, self._context.liveness.participants())
            pause = min(await self._longest_pause(), end - now())
            if await wait_at_most(changed, max(0.0, pause)):
                await asyncio.sleep(min(RECHECK_S, max(0.0, end - now())))
            await self._context.run_cache.refresh_if_old()

    async def _begin(self, generation: int, in_turn: bool) -> None:
        context = self._context
        await context.run_cache.refresh_if_old()
        context.run.registration
        if generation != context.view.generation and context.store.shared:
            await context.run_cache.refresh()
        if generation != context.view.generation:
            raise StaleGeneration(
                f"trainer generation {generation} is not {context.view.generation}"
            )
        started = context.run.state is RunState.STARTED
        if not started or (not in_turn and context.run.claimed != generation):
            claimed = None if in_turn else generation
            await context.run_cache.update(lambda run: start(run, claimed))
        if not started:
            context.events.publish("started")

    async def _longest_pause(self) -> float:
        if self._context.store.shared:
            return SHARED_RECHECK_S
        open_batches = (await self._context.queue_stats.read()).batches_open
        return OPEN_RECHECK_S if open_batches else 30.0

    async def _claim_once(self, asked: ClaimRequest, in_turn: bool) -> LeasedBatch | str:
        context = self._context
        run, size = context.run, context.run.registration.batch_size
        revision, stats = context.view.revision, await context.queue_stats.read()
        drops = run.registration.staleness_policy == "drop" and stats.groups_held
        if not stats.batches_open and not drops:
            reason, _ = await context.obstacles()
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
        chooser = self._chooser(run, is_full(stats, context.store.max_bytes))
        got: LeasedBatch | str
        if in_turn:
            got, acked = await self._do(ClaimInTurn(claim, chooser, revision))
            if acked is not None:
                self._note_acked(acked)
        else:
            got = await self._do(ClaimBatch(claim, chooser))
        context.queue_stats.invalidate()
        if isinstance(got, LeasedBatch):
            context.metrics.delivered(got, run.policy_version)
            context.events.publish("batch", no=got.no, epoch=got.epoch, sequences=got.n_seq)
            if got.dropped:
                context.events.publish("dropped", groups=got.dropped)
                context.space_freed.notify()
            return got
        return (await context.obstacles())[0] or got

    def _chooser(self, run: RunRecord, full: bool) -> Chooser:
        """The batching function, bound to the current run."""
        trainer, live = run.registration, self._context.live()
        chooser = partial(
            choose,
            batch_size=trainer.batch_size,
            needs=minimum_sequences(minima_of(live), trainer.batch_size),
            weights={env.env_id: env.weight for env in run.envs},
            names={env.env_id: env.wandb_name for env in live},
            policy=StalenessRule.of(run),
            full=full,
        )
        return _steered(chooser, run) if run.steering else chooser

    def _delivery(self, batch: LeasedBatch, rank: int | None) -> Delivery:
        if rank is None:
            return Delivery(batch, batch.members)
        return Delivery(batch, shard(batch.members, batch.world_size, rank))

    async def shard_of(self, no: int, generation: int, epoch: int, rank: int) -> Delivery:
        """The shard of ``rank`` of a batch that another rank claimed."""
        _require_counts(no, generation, epoch)
        batch = await self._ask(Lookup(no, generation, epoch))
        return self._delivery(batch, rank)

    async def ack(self, no: int, generation: int, epoch: int, rank: int | None = None) -> bool:
        """Mark batch ``no`` as trained on. True for the first call that does."""
        _require_counts(no, generation, epoch, rank or 0)
        context = self._context
        await context.run_cache.refresh_if_old()
        trainer = context.run.trainer
        commit = trainer is None or not trainer.commits
        first = await self._do(Ack(no, generation, epoch, rank=rank, commit=commit))
        if first:
            self._note_acked(no)
        return first

    async def note(
        self, no: int, generation: int, epoch: int, rank: int | None, body: bytes
    ) -> int:
        """Index the trainer's notes about a delivered batch, or its shard; the rows noted."""
        _require_counts(no, generation, epoch, rank or 0)
        batch = await self._ask(Lookup(no, generation, epoch, freed=True))
        members = self._delivery(batch, rank).members
        facts = await self._context.threads.parsing.run(notes_in, body, no, members)
        return sum(len(fact.rows) for fact in facts if self._context.indexer.submit(fact))

    def _note_acked(self, no: int) -> None:
        self._context.on_groups_removed()
        self._context.metrics.acked.inc()
        self._context.events.publish_ack(no)

    async def extend(self, no: int, generation: int, epoch: int, lease_s: float) -> None:
        """Extend the lease: it ends ``lease_s`` from now."""
        _require_counts(no, generation, epoch)
        until = self._context.clock() + lease_s
        await self._do(Extend(no, generation, epoch, until))
        self._context.queue_stats.invalidate()

    async def commit(self, no: int, generation: int) -> CommitResult:
        """Free all batches up to ``no``, which a durable checkpoint holds."""
        _require_counts(no, generation)
        context = self._context
        result = await self._do(Commit(no, generation))
        context.on_groups_removed()
        context.metrics.committed.inc(result.committed)
        context.events.publish("committed", no=no, batches=result.committed)
        if result.left_open:
            logger.warning(
                f"commit {no}: batches {result.left_open} were claimed without a claim_id and never "
                "acked, so they are delivered again: ack what was trained, or name the claims"
            )
        return result

    async def rewind(self, no: int, generation: int, rewind_id: str) -> RewindResult:
        """Queue groups acked after batch ``no``, the last batch of the checkpoint, again."""
        _require_counts(no, generation)
        context = self._context
        rewound = await self._do(Rewind(no, generation, rewind_id))
        if rewound.repeated:
            return rewound
        context.on_groups_removed()
        trained = (await context.queue_stats.read()).sequences_trained
        await context.run_cache.update(lambda run: rebase(run, trained))
        context.events.publish("rewound", no=no, replayed=rewound.replayed, gone=rewound.gone)
        return rewound

    async def settle_dead(self, no: int, revive: bool) -> bool:
        """Deliver a dead batch again, or free it; False if ``no`` is no dead batch."""
        is_dead = await self._do(Revive(no) if revive else DropDead(no))
        self._context.on_groups_removed()
        self._context.events.publish("revived" if revive else "dead_dropped", no=no)
        return is_dead

    async def discard(self, batch: LeasedBatch, error: CorruptPayload) -> None:
        """Dissolve a batch with damaged groups; its sound groups are delivered in a later batch."""
        context = self._context
        logger.error(
            f"{len(error.gids)} groups of batch {batch.no} are damaged in the store and set aside as "
            f"dead (dead_groups of /status): {error}"
        )
        await self._do(Discard(batch.no, error.gids))
        context.on_groups_removed()
        context.events.publish("corrupt", no=batch.no, groups=len(error.gids))

    async def give_up(self, batch: LeasedBatch) -> None:
        """End the lease of a batch whose reply was not delivered, so that it can be claimed."""
        with suppress(StaleGeneration):  # claimed again meanwhile
            await self.extend(batch.no, batch.generation, batch.epoch, lease_s=-1.0)
            self._context.groups_changed.notify()

    async def _do(self, operation: Work[T]) -> T:
        return await self._timed(operation, self._context.store.do)

    async def _ask(self, query: Work[T]) -> T:
        return await self._timed(query, self._context.store.ask)

    async def _timed(self, work: Work[T], call: Callable[[Work[T]], T]) -> T:
        metrics, threads = self._context.metrics, self._context.threads
        return await threads.batches.run(metrics.timed, work_name(work), partial(call, work))


def _steered(chooser: partial[Selection], run: RunRecord) -> Chooser:
    """The chooser with the weights in force, for a queue without the groups that wait."""
    held, steered = held_back(run), partial(chooser, weights=weights_in_force(run))
    return lambda queue, shares: steered([g for g in queue if g.env not in held], shares)


def _require_counts(*counts: int) -> None:
    """Reject a generation, batch or epoch outside of the range of a store."""
    if not all(0 <= count <= _MAX_COUNT for count in counts):
        raise StaleGeneration("there is no such batch or trainer generation")


LEASE_S = 600.0  # lease of GET /batch, which has no parameter for it
REPLY_TIMEOUT_S = 2.0  # maximum wait of a GET for the outcome of the previous reply


class LegacyBatchEndpoint:
    """GET /batch for trainers of the original, which neither claim nor ack. A single call at a time.

    These trainers read batch after batch and send nothing back. So the next GET acks the previous
    batch if its reply was sent whole, and returns the same batch again otherwise. Whose turn it
    is lies in the store, so the GETs may go to different replicas. A client that dies with
    unread bytes resets its connection, which counts as not sent; bytes that it had read before
    it died count as trained on, and a kill of the API between the last byte and the record of
    it delivers once more. ``/batches/claim`` is exact.
    """

    def __init__(self, context: ServiceContext, claims: Claims) -> None:
        self._context = context
        self._claims = claims
        self._turn = asyncio.Lock()
        self._sending = False  # a reply of this process has no outcome yet
        self._ended = BroadcastEvent()

    async def next_batch(self, is_disconnected: IsDisconnected) -> Delivery | None:
        """Ack the previous batch if its reply was delivered, and claim the next batch.

        The sender of the delivery has to call :meth:`end`.

        Raises:
            StaleGeneration: the trainer of the run claims its batches.
        """
        context = self._context
        async with self._turn:
            await context.run_cache.refresh_if_old()
            for _ in range(MAX_ATTEMPTS):
                view = context.view
                try:
                    require_polled(view.run, view.generation)
                except StaleGeneration:
                    context.events.publish("fenced", generation=view.generation)
                    raise
                await self._previous_reply(view.generation)
                request = ClaimRequest.model_validate(
                    {"generation": view.generation, "lease_s": LEASE_S}
                )
                try:
                    got = await self._claims.claim(request, is_disconnected, in_turn=True)
                except (RunChanged, StaleGeneration):
                    await context.run_cache.refresh()
                    if context.view is view:  # no change of the run explains it
                        raise
                    continue
                if isinstance(got, str):
                    return None
                self._sending = True
                return got
        raise RunChanged("the run kept changing: try again")

    async def _previous_reply(self, generation: int) -> None:
        """Wait until the outcome of the previous reply is known.

        A client with a new connection per call can be faster than the record that all bytes
        were sent.
        """
        context, now = self._context, asyncio.get_running_loop().time
        end = now() + REPLY_TIMEOUT_S
        while (self._sending or context.store.shared) and now() < end:
            ended = self._ended.subscribe()
            turn = await context.threads.batches.run(context.store.ask, last_turn)
            if turn is None or turn.generation != generation:
                break
            if turn.reply is not ReplyState.SENDING:
                break
            await wait_at_most(ended, RECHECK_S)
        self._sending = False

    async def end(self, batch: LeasedBatch, sent: bool) -> None:
        """Record whether the reply with ``batch`` was sent whole."""
        context = self._context
        await context.threads.batches.run(context.store.do, EndTurn(batch, sent))
        self._sending = False
        self._ended.notify()
