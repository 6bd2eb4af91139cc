"""Store protocol: the guarantees of the queue, for every storage backend.

    put: BUFFERED --complete--> PENDING --claim--> LEASED --ack--> ACKED --commit--> COMMITTED
                                 |  ^                |  ^            |
                          drop <-'  '--- dissolve ---'  '-- rewind --'      (DROPPED, DEAD)

Every method is atomic, blocking and thread-safe; its effect is durable when it returns. The
unit of delivery is an immutable numbered batch. Batches without an ack are delivered again,
whole and identical. A trainer that saves the number of its last batch in its checkpoint,
and rewinds to it, trains on each group exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atroposlib.api.common.records import (
    AdmissionGrant,
    BufferPolicy,
    Chooser,
    Claim,
    LeasedBatch,
    NewGroup,
    Payload,
    RewindResult,
    RunDocument,
    Stored,
    StoreStats,
    UnconfirmedPost,
)

# Rows kept of ended groups: a retry after so many further groups counts as a new group.
LEDGER_GROUPS = 20_000
DEFAULT_MAX_BYTES = 16 * 2**30


class Store(Protocol):
    """A durable queue of groups, the batches made of them, and the state of the run."""

    shared: bool  # whether other processes use the same data
    max_bytes: int  # bound on StoreStats.retained_bytes

    # --- groups in ----------------------------------------------------------------

    def put(
        self, groups: Sequence[NewGroup], revision: int, complete: BufferPolicy
    ) -> list[Stored]:
        """Store all groups or none; the results are in the order of ``groups``.

        A group with a known key is absorbed, also after its commit. A group with
        ``expected`` is buffered. Then ``complete`` gets the buffer of its env, oldest first,
        repeatedly until it returns no gids; the gids that it returns are queued. Of each
        size it gets the oldest ``expected // n_seq`` groups, so the cost does not grow with
        a buffer that never completes.

        Raises:
            RunChanged: ``revision`` is not that of the run document: read the run again.
            KeyConflict: a key is known with other content.
            StoreFull: the put would exceed the bound on retained bytes or use the reserve
                of free space; duplicates are still absorbed.
        """

    def unconfirmed_posts(self, since: float) -> list[UnconfirmedPost]:
        """Groups without a key that arrived at ``since`` or later, in any state."""

    # --- batches out --------------------------------------------------------------

    def claim(self, claim: Claim, choose: Chooser) -> LeasedBatch | str:
        """Lease one batch, or return the reason why none can be formed.

        In this order: the open batch of the same ``claim_id``; the oldest open batch
        whose lease ended, or that an older generation holds, or that a rewind reopened;
        a new one. A repeated batch is identical, with ``epoch`` one higher. Deliveries to
        repeats of one ``claim_id`` do not fence each other: a late response to the first
        must not fence the trainer that uses the second. An open batch without ``size``
        sequences is dissolved (its groups return to their place in the queue), and one
        delivered ``max_deliveries`` times is dead, with its groups.

        For a new batch ``choose`` gets, oldest first, the oldest ``size // n_seq`` groups
        of each kind (env, n_seq); more cannot be part of one batch. Groups that it drops
        are freed in the same transaction. If it dropped groups and chose none, it is
        called again.

        Raises:
            StaleGeneration: ``generation`` is not the current one.
        """

    def lookup(self, no: int, generation: int, epoch: int) -> LeasedBatch:
        """The batch as delivered, for the shards of other ranks.

        Raises:
            StaleGeneration: as for :meth:`ack`.
        """

    def read(self, gids: Sequence[int]) -> list[Payload]:
        """Payloads in the order of ``gids``, byte for byte as put.

        Raises:
            CorruptPayload: bytes do not match their digest, or are missing; ``gids`` of the
                error names all damaged groups.
        """

    def discard(self, no: int, gids: Sequence[int]) -> None:
        """Mark damaged groups of open batch ``no`` DEAD and dissolve the batch, so that its
        other groups are delivered in a new one. A batch that is not open is unchanged."""

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        """Move the end of a lease.

        Raises:
            StaleGeneration: as for :meth:`ack`.
        """

    def ack(
        self, no: int, generation: int, epoch: int, *, rank: int | None, commit: bool
    ) -> bool:
        """Record that the batch was trained on. True for the call that changed it.

        With a ``rank`` the batch is acked after the calls of all ``world_size`` ranks.
        ``commit`` frees the payloads at once, for trainers that never rewind.

        Raises:
            StaleGeneration: no such batch, a later delivery or generation owns it, or it is dead.
            ConfigError: there is no such rank.
        """

    def commit(self, no: int, generation: int) -> int:
        """Free all batches up to ``no``, whose effect a durable checkpoint holds.

        Open batches up to ``no`` count as acked. Returns the number of batches committed.

        Raises:
            StaleGeneration: ``generation`` is not the current one, or ``no`` was never formed.
        """

    def rewind(self, no: int, generation: int) -> RewindResult:
        """Return to the checkpoint that holds batches up to ``no``; 0 is the beginning.

        Acked and open batches after ``no`` are delivered again, first and in their order;
        their former holders are fenced. Open batches up to ``no`` count as acked.

        Raises:
            StaleGeneration: ``generation`` is not the current one, or ``no`` was never formed.
        """

    # --- admission ----------------------------------------------------------------

    def admit(self, asked: AdmissionGrant, budget: int, now: float) -> int:
        """Sequences granted, 0 .. ``asked.n_seq``; recorded until ``asked.until``.

        ``budget`` bounds, over the whole run, the sequences accepted (held, acked and
        committed) plus those of admissions that have not ended; it may be negative. A
        repeated ``admission_id`` returns the same grant, with the later end.
        """

    def release(self, admission_id: str) -> bool:
        """End an admission. False if it is unknown or has ended."""

    def admitted(self, now: float) -> int:
        """Sequences of admissions that have not ended."""

    # --- the run ------------------------------------------------------------------

    def load(self) -> RunDocument:
        """The run document as last saved."""

    def save(self, body: bytes, revision: int, *, fence: bool = False) -> RunDocument:
        """Save the run document if ``revision`` is still the latest.

        ``fence`` begins the next trainer generation in the same transaction.

        Raises:
            RunChanged: a later revision exists.
        """

    def reset(self) -> RunDocument:
        """Delete groups, batches, admissions, fair shares and run, and fence every trainer.
        Group ids, batch numbers, generations and revisions continue."""

    def stats(self) -> StoreStats:
        """Counts by kind."""

    def close(self) -> None:
        """Finish pending operations and close the files. Idempotent."""
