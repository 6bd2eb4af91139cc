"""What the parts of the API say to each other. No I/O, no decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec


class GroupState(str, Enum):
    """Where a group is. It only moves down this list, or from LEASED back to PENDING."""

    BUFFERED = "buffered"  # waits until groups of its env add up to the expected size
    PENDING = "pending"  # in the queue, may be chosen for a batch
    LEASED = "leased"  # part of a batch that a trainer holds
    ACKED = "acked"  # trained on; only the ledger row is left, to absorb late duplicates


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """All that batching may know about a queued group. Smaller ``gid`` means older."""

    gid: int
    env: int | None
    n_seq: int
    version: int | None = None  # oldest policy version that sampled one of its tokens


@dataclass(frozen=True, slots=True)
class Selection:
    """Either the groups of one exact batch, oldest first, or why there is none."""

    gids: tuple[int, ...] = ()
    blocked_reason: str | None = None


Chooser = Callable[[Sequence[GroupSummary]], Selection]


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group on its way into the store; ``payload`` is its JSON, kept byte for byte."""

    payload: bytes
    n_seq: int
    env: int | None = None
    key: str | None = None
    version: int | None = None
    buffered: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """Answer to one put. A duplicate reports the group that was there already."""

    gid: int
    duplicate: bool
    state: GroupState


@dataclass(frozen=True, slots=True)
class Batch:
    """An immutable numbered batch as one delivery sees it."""

    no: int
    epoch: int  # 1 at the first delivery, +1 at each further one
    gids: tuple[int, ...]
    generation: int  # of the trainer that holds it


@dataclass(frozen=True, slots=True)
class Tally:
    """How many groups of one kind are held."""

    state: GroupState
    env: int | None
    n_seq: int
    groups: int

    @property
    def sequences(self) -> int:
        return self.n_seq * self.groups


@dataclass(frozen=True, slots=True)
class StoreStats:
    """``delivered`` counts the batches handed to the current trainer generation."""

    tallies: tuple[Tally, ...]  # BUFFERED, PENDING and LEASED only
    batches_acked: int
    delivered: int


class EnvEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An environment of this run. Its id is its place in the list of the run."""

    env_id: int
    desired_name: str
    wandb_name: str
    max_token_length: int
    weight: float
    group_size: int
    min_batch_allocation: float | None = None
    connected: bool = True


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of one posted group."""

    duplicate: bool
    buffered: bool
    buffer_size: int  # sequences that its env's buffer holds now


@dataclass(frozen=True, slots=True)
class Delivery:
    """One hand-over of a batch, with the stored bytes of its groups."""

    batch: Batch
    payloads: list[bytes]
