"""The store seam: what the queue promises, whatever keeps it.

    put: BUFFERED --complete--> PENDING --claim--> LEASED --ack--> ACKED --commit--> COMMITTED
                                 |  ^                |  ^            |
                          drop <-'  '--- dissolve ---'  '-- rewind --'      (DROPPED, DEAD)

Every method is atomic, blocking and safe to call from any thread; what it did is durable
when it returns. The unit of delivery is an immutable numbered batch: un-acked batches
come again whole and identical, so a trainer that writes the last number it trained on
into its checkpoint, and rewinds to it, trains on each group exactly once.
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

# Ledger rows of groups that came to an end: a retry this many groups later is a new group.
LEDGER_GROUPS = 20_000
DEFAULT_MAX_BYTES = 16 * 2**30


class Store(Protocol):
    """A durable queue of groups, the batches made of them, and the state of the run."""

    shared: bool  # whether other processes may change what it holds
    max_bytes: int  # bound on the payloads on hand, see StoreStats.retained_bytes

    # --- groups in ----------------------------------------------------------------

    def put(
        self, groups: Sequence[NewGroup], revision: int, complete: BufferPolicy
    ) -> list[Stored]:
        """Keep all groups or none; answer in their order.

        A group whose key is known already is absorbed, also after its commit. A group
        with ``expected`` is buffered; then ``complete`` sees the buffer of its env, oldest
        first, again and again until it finds nothing whole, and what it names is queued.
        Its cost must not grow with a buffer that never becomes whole: of each size it is
        shown the oldest ``expected // n_seq`` groups.

        Raises:
            RunChanged: ``revision`` is not the run document's: look at the run again.
            KeyConflict: a key is known with other content.
            StoreFull: the bound on retained bytes or the reserve of free space would be
                passed; duplicates still pass.
        """

    def unconfirmed_posts(self, since: float) -> list[UnconfirmedPost]:
        """Groups without a key that arrived at ``since`` or later, in whatever state."""

    # --- batches out --------------------------------------------------------------

    def claim(self, claim: Claim, choose: Chooser) -> LeasedBatch | str:
        """Lease one batch, or say why none can be formed.

        In this order: the open batch of the same ``claim_id``; the oldest open batch
        whose lease ended, or that an older generation holds, or that a rewind reopened;
        a new one. What comes again is identical, with ``epoch`` one higher; deliveries to
        repeats of one ``claim_id`` do not fence each other, for a late answer to the first
        must not fence the trainer that holds the second. Of what comes again, one
        that has not ``size`` sequences is dissolved (its groups are queued at their old
        place), and one delivered ``max_deliveries`` times is dead, with its groups.

        For a new batch ``choose`` sees, oldest first, the oldest ``size // n_seq`` groups
        of each kind (env, n_seq): more can never be part of one batch. What it drops is
        freed in the same transaction; if it dropped and chose nothing it is asked again.

        Raises:
            StaleGeneration: ``generation`` is not the current one.
        """

    def lookup(self, no: int, generation: int, epoch: int) -> LeasedBatch:
        """The batch as delivered; for the shards of other ranks.

        Raises:
            StaleGeneration: as for :meth:`ack`.
        """

    def read(self, gids: Sequence[int]) -> list[Payload]:
        """Payloads in the order asked for, byte for byte as they were put.

        Raises:
            CorruptPayload: the bytes no longer match their digest, or are gone. Its
                ``gids`` names all damaged ones of those asked for.
        """

    def discard(self, no: int, gids: Sequence[int]) -> None:
        """These groups of open batch ``no`` are damaged: they are DEAD, and the batch is
        dissolved, so the others are delivered in another one. Other batches: nothing."""

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        """Move the end of a lease.

        Raises:
            StaleGeneration: as for :meth:`ack`.
        """

    def ack(
        self, no: int, generation: int, epoch: int, *, rank: int | None, commit: bool
    ) -> bool:
        """The batch was trained on. True for the call that made it so, then False.

        With a ``rank`` it is acked when all ``world_size`` ranks said so. ``commit`` frees
        the payloads at once, for trainers that never rewind.

        Raises:
            StaleGeneration: no such batch, or a later delivery or generation owns it, or it is dead.
            ConfigError: there is no such rank.
        """

    def commit(self, no: int, generation: int) -> int:
        """A durable checkpoint holds the effect of all batches up to ``no``: free them.

        Open ones up to ``no`` count as acked. Returns how many batches became committed.

        Raises:
            StaleGeneration: ``generation`` is not the current one, or ``no`` was never formed.
        """

    def rewind(self, no: int, generation: int) -> RewindResult:
        """The trainer restarted from the checkpoint that holds batches up to ``no``.

        Acked and open batches after ``no`` become deliverable, first and in their order,
        and who held them is fenced; open ones up to ``no`` count as acked. ``no`` 0 is the
        very beginning.

        Raises:
            StaleGeneration: ``generation`` is not the current one, or ``no`` was never formed.
        """

    # --- admission ----------------------------------------------------------------

    def admit(self, asked: AdmissionGrant, budget: int, now: float) -> int:
        """Sequences granted, 0 .. ``asked.n_seq``; recorded until ``asked.until``.

        ``budget`` bounds, over the whole run, the sequences accepted (held, acked and
        committed) plus those admitted and not over; it may be negative. The same
        ``admission_id`` again gets what it got, with the later end.
        """

    def release(self, admission_id: str) -> bool:
        """Give an admission back. False if it is unknown or over."""

    def admitted(self, now: float) -> int:
        """Sequences admitted and not over."""

    # --- the run ------------------------------------------------------------------

    def load(self) -> RunDocument:
        """The run as last saved."""

    def save(self, body: bytes, revision: int, *, fence: bool = False) -> RunDocument:
        """Keep the run, if nobody saved it since ``revision`` was read.

        ``fence`` begins the next trainer generation in the same transaction.

        Raises:
            RunChanged: somebody did.
        """

    def reset(self) -> RunDocument:
        """Forget groups, batches, admissions, mix and run, and fence every trainer.
        Group ids, batch numbers, generations and revisions go on."""

    def stats(self) -> StoreStats:
        """What is held, counted by kind."""

    def close(self) -> None:
        """Finish what was begun and let go of the files. Idempotent."""
