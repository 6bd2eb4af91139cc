"""GET /batch, for trainers that know neither claim nor ack.

They read one batch after another and tell nothing. So the next GET acks the batch before
if its reply went out whole, and gets the same batch again if it did not. Bytes in the
socket buffers of a client that died count as sent, and a kill between the last byte and
our note delivers once more: at least once, not exactly once. ``/batches/claim`` is exact.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from atroposlib.api.common.records import Delivery, LeasedBatch
from atroposlib.api.common.threads import IsDisconnected, wait_at_most
from atroposlib.api.decisions.run_state import RunRecord, SentBatch, sent
from atroposlib.api.run.claims import Claims
from atroposlib.api.run.context import Core
from atroposlib.api.run.run_cache import RunView
from atroposlib.errors import StaleGeneration
from atroposlib.wire import ClaimRequest

LEASE_S = 600.0  # GET /batch names no lease
REPLY_PATIENCE_S = 2.0  # how long a GET waits to learn whether the one before got through


class OldTrainers:
    """Serves GET /batch. One call at a time: these trainers are sequential."""

    def __init__(self, core: Core, claims: Claims) -> None:
        self._core = core
        self._claims = claims
        self._turn = asyncio.Lock()
        self._settled: asyncio.Event | None = None  # of the last reply
        self._acked: SentBatch | None = None  # so that an empty poll asks the store nothing

    async def next_batch(
        self, is_disconnected: IsDisconnected
    ) -> tuple[Delivery, asyncio.Event] | None:
        """Ack the batch before if it got through, and claim the next.

        A GET that comes before the fate of the last reply is known waits for it: a client
        with a new connection per call can be faster than our note that all went out.
        Whoever sends the delivery sets its event when that is known.

        Raises:
            NotRegistered: no trainer has registered.
        """
        async with self._turn:
            if self._settled is not None:
                await wait_at_most(self._settled, REPLY_PATIENCE_S)
            await self._core.keeper.refresh_if_old()
            view = self._core.view
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
        """Number of the last batch that this trainer got whole; 0 if there is none."""
        last = view.run.sent
        if last is None or last.generation != view.generation:
            return 0
        if last != self._acked:
            with suppress(StaleGeneration):  # delivered again since then: the claim brings it
                await self._claims.ack(last.no, last.generation, last.epoch)
            self._acked = last
        return last.no

    async def note_sent(self, batch: LeasedBatch) -> None:
        """The reply with ``batch`` went out whole."""
        got = SentBatch(no=batch.no, epoch=batch.epoch, generation=batch.generation)

        def noted(run: RunRecord) -> RunRecord:
            # A trainer that registered since has its own last batch, and fences this one.
            return sent(run, got) if self._core.view.generation == got.generation else run

        await self._core.keeper.change(noted)
