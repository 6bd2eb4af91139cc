"""What the parts of the API say to each other. No I/O, no decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec
import xxhash


class GroupState(str, Enum):
    """Where a group is. Only ``rewind`` and ``dissolve`` lead back up this list."""

    BUFFERED = "buffered"  # waits until groups of its env add up to the expected size
    PENDING = "pending"  # in the queue, may be chosen for a batch
    LEASED = "leased"  # part of a batch that a trainer holds
    ACKED = "acked"  # trained on; the payload stays until a checkpoint holds the result
    COMMITTED = "committed"  # only the ledger row is left, to absorb late duplicates
    DROPPED = "dropped"  # too stale to train on; only the ledger row is left
    DEAD = "dead"  # delivered too often or damaged; the payload stays for inspection


MAX_DELIVERIES = 20
HELD = frozenset({GroupState.BUFFERED, GroupState.PENDING, GroupState.LEASED})


class Media(str, Enum):
    """How the stored bytes of one group are written."""

    JSON = "json"
    SAFETENSORS = "safetensors"
    SAFETENSORS_ZSTD = "safetensors+zstd"  # one zstd frame around a safetensors file


def digest_of(payload: bytes) -> bytes:
    """128 bits that tell payloads apart and show bit rot. Not a signature: whoever wants to
    can make two payloads of one digest, and would lose one of his own groups by it."""
    return xxhash.xxh3_128_digest(payload)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """All that batching may know about a queued group. Smaller ``gid`` means older."""

    gid: int
    env: int | None
    n_seq: int
    n_tokens: int = 0  # trained tokens, that is positions whose mask is not -100
    version: int | None = None  # oldest policy version that sampled one of its tokens
    arrived_version: int | None = None  # policy version of the run when it came in


@dataclass(frozen=True, slots=True)
class Selection:
    """Either the groups of one exact batch, oldest first, or why there is none."""

    gids: tuple[int, ...] = ()
    blocked_reason: str | None = None
    dropped: tuple[int, ...] = ()  # too stale; freed whether or not a batch was formed
    min_version: int | None = None  # tokens of older versions are masked at delivery
    fair_share: bytes | None = (
        None  # the document of the fair mix after this batch, see ``mix``
    )


# The queue, oldest first, and the document that the last Selection with a batch left.
Chooser = Callable[[Sequence[GroupSummary], bytes | None], Selection]

# The (gid, n_seq) of a buffer, oldest first, and the size wanted: the gids that are whole.
BufferPolicy = Callable[[Sequence[tuple[int, int]], int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group on its way into the store; ``payload`` is kept byte for byte."""

    payload: bytes
    n_seq: int
    n_tokens: int = 0
    media: Media = Media.JSON
    env: int | None = None
    key: str | None = None
    version: int | None = None
    arrived_version: int | None = None
    arrived: float = 0.0  # s, clock of the API
    # Not None: the group waits until groups of its env add up to exactly so many sequences.
    expected: int | None = None
    digest: bytes | None = None  # of the payload, where it is known already


@dataclass(frozen=True, slots=True)
class Stored:
    """Answer to one put. A duplicate reports the group that was there already.

    ``buffered`` counts the sequences that its env's buffer holds after the put.
    """

    gid: int
    duplicate: bool
    state: GroupState
    buffered: int = 0


@dataclass(frozen=True, slots=True)
class UnconfirmedPost:
    """A group without key that came in lately: its sender may send it once more."""

    gid: int
    env: int | None
    digest: bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """The stored bytes of one group, already checked against their digest."""

    data: bytes
    media: Media


@dataclass(frozen=True, slots=True)
class Claim:
    """What a trainer asks for. ``claim_id`` makes a repeated call bring the same batch."""

    generation: int
    size: int  # sequences per batch
    now: float  # s, clock of the API
    lease_s: float
    claim_id: str | None = None
    world_size: int = 1  # ranks that will ack
    max_deliveries: int = MAX_DELIVERIES  # a batch delivered so often without an ack is dead


@dataclass(frozen=True, slots=True)
class BatchMember:
    """A group of a batch, without its payload."""

    gid: int
    n_seq: int
    n_tokens: int
    n_bytes: int
    media: Media
    env: int | None = None
    version: int | None = None
    arrived_version: int | None = None


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """An immutable numbered batch as one delivery sees it."""

    no: int
    epoch: int  # 1 at the first delivery, +1 at each further one
    generation: int  # of the trainer that holds it
    members: tuple[BatchMember, ...]  # oldest first
    world_size: int = 1
    min_version: int | None = None
    dropped: int = 0  # groups freed for staleness by the claim that formed it

    @property
    def gids(self) -> tuple[int, ...]:
        return tuple(member.gid for member in self.members)

    @property
    def n_seq(self) -> int:
        return sum(member.n_seq for member in self.members)


@dataclass(frozen=True, slots=True)
class RewindResult:
    """``replayed`` batches will be delivered again; ``gone`` were committed already."""

    replayed: int
    gone: int


@dataclass(frozen=True, slots=True)
class AdmissionGrant:
    """A promise of ``n_seq`` sequences to come, which counts against the staleness budget."""

    admission_id: str
    env: int | None
    n_seq: int
    until: float  # s, clock of the API


@dataclass(frozen=True, slots=True)
class GroupCount:
    """How many groups of one kind are held."""

    state: GroupState
    env: int | None
    n_seq: int
    groups: int
    n_bytes: int = 0

    @property
    def sequences(self) -> int:
        return self.n_seq * self.groups


@dataclass(frozen=True, slots=True)
class StateTotals:
    """Groups and sequences that ever came to an end in this run, by the end they came to."""

    groups: int = 0
    sequences: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What is held and what became of the rest. Costs O(kinds), whatever the queue holds."""

    group_counts: tuple[GroupCount, ...]  # BUFFERED, PENDING and LEASED only
    batches_acked: int  # committed ones included
    delivered: int  # batches handed to the current trainer generation
    revision: int = 0  # of the run document
    batches_open: int = 0  # leased, and not acked
    batches_dead: int = 0
    retained_bytes: int = 0  # payloads on hand: held, or acked and not committed, or dead
    totals: Mapping[GroupState, StateTotals] = field(default_factory=dict)  # ACKED .. DEAD
    fair_share: bytes | None = None


@dataclass(frozen=True, slots=True)
class RunDocument:
    """The run as the store keeps it; whoever saves must have read the latest revision."""

    revision: int
    generation: int
    body: bytes | None


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
    """One hand-over: the batch, and which of its members this consumer gets."""

    batch: LeasedBatch
    members: tuple[BatchMember, ...]
