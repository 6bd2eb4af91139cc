"""Prefetch of batches: the next batch is claimed while a step runs, for every rank.

    rank 0   claim --> queue of one --> next() --share--> all ranks
               ^                          |
               '--- lease extended <------'  until ack

The current and the prefetched batch keep their lease, however long a step takes. A prefetched
batch is not acked when the trainer stops, so it is delivered again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec

from atroposlib.client import LeaseKeeper, RolloutClient
from atroposlib.errors import RolloutApiUnavailable, surviving
from atroposlib.wire import ClaimedBatch
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import TrainerState
from example_trainer.run.connect import WaitReporter
from example_trainer.run.environment_names import EnvironmentNames
from example_trainer.state import Stopped, StoppedBetweenSteps, end

logger = logging.getLogger(__name__)
CLAIM_WAIT_S = 5.0  # wait of a call; short, so that a stop takes effect soon
POLL_S = 1.0
# Claims without a batch after the last environment ended; the first may have begun before.
REFUSALS = 2


class BatchPrefetcher:
    """Claims batches in a thread, at most one batch ahead of the loop. Rank 0 only.

    Args:
        state: a batch that it names as trained is acked without training.
        algorithms: names of environments that have one; groups then get the name of theirs.
        batches: number to claim in all.
        ahead: claim the next batch while its predecessor is trained; else after its ack.
        lease_s: seconds of the lease of a batch, extended until its ack.
    """

    def __init__(
        self,
        client: RolloutClient,
        state: TrainerState,
        algorithms: Collection[str] = (),
        *,
        batches: int,
        ahead: bool,
        lease_s: float,
    ) -> None:
        self._names = EnvironmentNames(client, algorithms)
        self._client, self._ahead, self._lease_s = client, ahead, lease_s
        self._first_state = state
        self._ready: queue.Queue[ClaimedBatch | Exception] = queue.Queue(maxsize=1)
        self._wanted = threading.Semaphore(1)  # claims left for the thread
        self._to_claim = batches
        self._keepers: dict[int, LeaseKeeper] = {}
        self.blocked_reason = "no answer yet"  # the API's, why no batch is ready
        self.refusals = 0  # claims in a row to which the API gave no batch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> BatchPrefetcher:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._wanted.release()
        for keeper in list(self._keepers.values()):
            keeper.__exit__(None, None, None)
        self._thread.join(timeout=2 * CLAIM_WAIT_S)

    def poll(self, timeout_s: float) -> ClaimedBatch | None:
        """Return the next batch if it arrives in time; raise what ended the claims."""
        try:
            got = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(got, Exception):
            raise got
        if self._ahead:
            self._wanted.release()
        return got

    def confirm(self, claimed: ClaimedBatch) -> None:
        """Raise StaleGeneration if another trainer or delivery took the batch over."""
        self._keepers[claimed.batch_no or 0].check()
        self._client.extend(claimed, lease_s=self._lease_s)

    def ack(self, claimed: ClaimedBatch) -> None:
        """Acknowledge a batch: the published weights contain it."""
        keeper = self._keepers.pop(claimed.batch_no or 0)
        keeper.check()
        self._client.ack(claimed)
        keeper.__exit__(None, None, None)
        if not self._ahead:
            self._wanted.release()

    def _run(self) -> None:
        with surviving(self._ready.put), suppress(Stopped):  # the signal that stops the loop
            while self._to_claim > 0:
                self._wanted.acquire()
                claimed = self._claim()
                if claimed is None:
                    return
                self._to_claim -= 1
                self._ready.put(claimed)

    def _claim(self) -> ClaimedBatch | None:
        while not self._stop.is_set():
            claimed = self._client.claim(
                lease_s=self._lease_s, wait_s=CLAIM_WAIT_S, binary=True
            )
            if claimed.batch is None or claimed.batch_no is None:
                self.blocked_reason = claimed.blocked_reason or "no reason given"
                self.refusals += 1
                continue
            self.refusals = 0
            if self._first_state.has_trained(self._first_state.run_id, claimed.batch_no):
                logger.info(f"batch {claimed.batch_no} is in the weights already: acked")
                self._client.ack(claimed)
                continue
            self._names.write_into(claimed.batch)
            keeper = self._client.keep_lease(claimed, lease_s=self._lease_s)
            keeper.__enter__()
            self._keepers[claimed.batch_no] = keeper
            return claimed
        return None


def next_batch(
    prefetcher: BatchPrefetcher | None, world: Ranks, waits: WaitReporter, timeout_s: float
) -> ClaimedBatch | None:
    """Return the same next batch on every rank; ``prefetcher`` is None on all but the first.

    None: every environment of the launcher has ended, and no batch is left.

    Rank 0 sends a message every second while it waits: no rank exceeds the timeout of a
    collective operation, and all stop together.

    Raises:
        RolloutApiUnavailable: none could be formed within ``timeout_s``.
        StoppedBetweenSteps: the first rank was asked to stop.
    """
    started = time.monotonic()
    over: Callable[[], bool] = NoBatchLeft(prefetcher) if prefetcher else bool
    while True:
        message = _Message()
        if prefetcher is not None:
            message = _Message(prefetcher.poll(POLL_S), waits.stop.reason, over())
        shared: _Message = world.share(message, _Message)
        if shared.stop is not None:
            raise StoppedBetweenSteps(shared.stop)
        if shared.claimed is not None or shared.over:
            return shared.claimed
        waited_s = time.monotonic() - started
        if prefetcher is None:
            continue
        if waited_s > timeout_s:
            raise RolloutApiUnavailable(
                f"no batch for {waited_s:.0f} s: {prefetcher.blocked_reason}"
            )
        waits(
            f"a batch: {prefetcher.blocked_reason}; {waited_s:.0f} s of at most"
            f" {timeout_s:.0f} s",
            cause="batch",
        )


class NoBatchLeft:
    """Whether the API refused batches after the last environment of the launcher ended."""

    def __init__(self, prefetcher: BatchPrefetcher) -> None:
        self._prefetcher = prefetcher
        self._before: int | None = None  # refusals when the environments had ended

    def __call__(self) -> bool:
        if not end.have_environments_ended():
            return False
        refusals = self._prefetcher.refusals
        if self._before is None or refusals < self._before:
            self._before = refusals
        return refusals >= self._before + REFUSALS


class _Message(msgspec.Struct):
    """Message of rank 0 to all ranks."""

    claimed: ClaimedBatch | None = None
    stop: str | None = None
    over: bool = False  # every environment has ended, and no batch is left
