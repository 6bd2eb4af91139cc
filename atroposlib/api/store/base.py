"""The store seam: what the queue promises, whatever keeps it.

    put: BUFFERED --release--> PENDING --claim--> LEASED --ack--> ACKED
                                  ^                  |
                                  '---- dissolve ----'   (the trainer wants another size)

Every method is atomic, blocking and safe to call from any thread; what it did is durable
when it returns. The unit of delivery is an immutable numbered batch: un-acked batches
come again whole and identical, so a trainer that remembers the last number it trained on
trains on each group once. ``commit(step)`` and ``rewind(step)`` belong here later: they
split ACKED into acked and committed, and need the payload kept for as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from atroposlib.api.records import Batch, Chooser, NewGroup, Stored, StoreStats
from atroposlib.errors import CorruptPayload, Fenced


class Store(Protocol):
    """A durable queue of groups, the batches made of them, and the state of the run."""

    def put(self, groups: Sequence[NewGroup]) -> list[Stored]:
        """Keep all groups or none; answer in their order.

        A group whose key is known already is absorbed, also after its ack.

        Raises:
            KeyConflict: a key is known with other content.
            StoreFull: the reserve of free space would be touched; duplicates still pass.
        """

    def release(self, gids: Sequence[int]) -> None:
        """Move buffered groups into the queue. Other states stay as they are."""

    def register(self) -> int:
        """Begin the next trainer generation and fence all before it. Never reused."""

    def claim(
        self, generation: int, size: int, choose: Chooser, now: float, lease_s: float
    ) -> Batch | str:
        """Lease one batch, or say why none can be formed.

        The oldest un-acked batch comes first, whoever held it: there is one trainer, and
        it is sequential, so a second claim means that the first reply was lost or that
        the trainer restarted. It comes identical with ``epoch`` one higher. One that has
        not ``size`` sequences is dissolved and its groups are queued again at their old
        place. Without one, ``choose`` sees the queue, oldest first, and its selection
        becomes the next number. ``lease_until`` is written for a store with several
        consumers; with one, no claim is refused for a live lease.

        Raises:
            Fenced: ``generation`` is not the current one.
        """

    def read(self, gids: Sequence[int]) -> list[bytes]:
        """Payloads in the order asked for, byte for byte as they were put.

        Raises:
            CorruptPayload: the bytes no longer match their digest, or are gone.
        """

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        """Move the end of a lease.

        Raises:
            Fenced: as for :meth:`ack`.
        """

    def ack(self, no: int, generation: int, epoch: int) -> bool:
        """The batch was trained on: free its payloads. True the first time, then False.

        Raises:
            Fenced: no such batch, or a later delivery or generation owns it.
        """

    def load(self, name: str) -> bytes | None:
        """A document of the run, or None."""

    def save(self, name: str, document: bytes) -> None:
        """Keep a document of the run."""

    def buffered(self) -> list[tuple[int, int | None, int]]:
        """(gid, env, n_seq) of each buffered group, oldest first."""

    def stats(self) -> StoreStats:
        """What is held, counted by kind."""

    def reset(self) -> None:
        """Forget groups, batches and documents, and fence every trainer. Numbers go on."""

    def close(self) -> None:
        """Finish what was begun and let go of the files. Idempotent."""


def digest_of(payload: bytes) -> bytes:
    """blake2b-128: fast, and long enough to tell contents apart."""
    return blake2b(payload, digest_size=16).digest()


def checked(gid: int, payload: bytes | None, digest: bytes) -> bytes:
    """The payload, if it is still what was acknowledged."""
    if payload is None or digest_of(payload) != digest:
        raise CorruptPayload(f"group {gid} no longer matches its digest; it is not delivered")
    return payload


def require_owner(
    no: int, owner: tuple[int, int] | None, generation: int, epoch: int, current: int
) -> None:
    """Fence whoever does not hold the latest delivery; ``owner`` is (generation, epoch)."""
    if generation != current:
        raise Fenced(f"trainer generation {generation} was replaced by {current}")
    if owner != (generation, epoch):
        raise Fenced(f"delivery {epoch} of batch {no} is not the latest one")
