"""Types that the parts of the rollout API exchange. No I/O, no decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec
import xxhash


class GroupState(str, Enum):
    """State of a group. Only ``rewind`` and ``dissolve`` lead back up this list."""

    BUFFERED = "buffered"  # waits until groups of its env add up to the expected size
    PENDING = "pending"  # queued, may be chosen for a batch
    LEASED = "leased"  # part of a batch that a trainer holds
    ACKED = "acked"  # trained on; the payload stays until a checkpoint holds the result
    COMMITTED = "committed"  # only the row is left, to absorb late duplicates
    DROPPED = "dropped"  # too stale to train on; only the row is left
    DEAD = "dead"  # delivered too often or damaged; the payload stays for inspection


MAX_DELIVERIES = 20
HELD = frozenset({GroupState.BUFFERED, GroupState.PENDING, GroupState.LEASED})


def digest_of(payload: bytes) -> bytes:
    """A 128-bit checksum (xxh3) that detects duplicates and bit rot.

    It is no signature: a sender can construct two payloads with the same digest, and would lose
    a group.
    """
    return xxhash.xxh3_128_digest(payload)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The facts of a group for batching. A smaller ``gid`` means older."""

    gid: int
    env: int | None
    n_seq: int
    n_tokens: int = 0  # trained tokens, that is positions whose mask is not -100
    version: int | None = None  # oldest policy version that sampled a token of it
    arrived_version: int | None = None  # policy version of the run at its arrival

    @property
    def cost(self) -> int:
        """Trained tokens, at least 1 per row: groups without a cost would fill every
        batch, and all fall to a single rank."""
        return max(self.n_tokens, self.n_seq, 1)

    @property
    def oldest_version(self) -> int | None:
        """Its version, or else the version at its arrival, an upper bound; None if unknown."""
        return self.version if self.version is not None else self.arrived_version

    def is_older_than(self, bound: int | None) -> bool:
        """Whether some tokens are known to be of versions below ``bound``, if any."""
        version = self.oldest_version
        return bound is not None and version is not None and version < bound


@dataclass(frozen=True, slots=True)
class BatchMember(GroupSummary):
    """A group of a batch, without its payload."""

    n_bytes: int = 0  # size of the payload


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups of an exact batch, oldest first, or the reason why there is none."""

    gids: tuple[int, ...] = ()
    blocked_reason: str | None = None
    dropped: tuple[int, ...] = ()  # too stale; freed whether or not a batch was formed
    min_version: int | None = None  # tokens of older versions are masked at delivery
    fair_share: bytes | None = None  # state of ``decisions.fair_share`` after this batch


# The queue, oldest first, and ``fair_share`` of the last Selection with a batch.
Chooser = Callable[[Sequence[GroupSummary], bytes | None], Selection]

# (gid, n_seq) of a buffer, oldest first, and the wanted size -> gids that add up to it.
BufferPolicy = Callable[[Sequence[tuple[int, int]], int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group to store; ``payload`` is a safetensors file, perhaps as a zstd frame, kept unchanged."""

    payload: bytes
    n_seq: int
    n_tokens: int = 0
    env: int | None = None
    key: str | None = None
    version: int | None = None
    arrived_version: int | None = None
    arrived: float = 0.0  # s, clock of the API
    # Not None: the group is buffered until groups of its env add up to this size.
    expected: int | None = None
    # Of the payload, computed here unless given: a copy by ``replace`` keeps it.
    digest: bytes = b""

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", digest_of(self.payload))


@dataclass(frozen=True, slots=True)
class Stored:
    """Result for a group of a put; ``buffered``: sequences in its buffer after it, if it is in a buffer."""

    gid: int
    duplicate: bool
    state: GroupState
    buffered: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """Request of a trainer for a batch. A repeated ``claim_id`` returns the same batch."""

    generation: int
    size: int  # sequences per batch
    now: float  # s, clock of the API
    lease_s: float
    claim_id: str | None = None
    world_size: int = 1  # ranks that will ack
    max_deliveries: int = MAX_DELIVERIES  # deliveries without an ack before a batch is dead


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """An immutable numbered batch, as leased by a delivery."""

    no: int
    epoch: int  # 1 at the first delivery, +1 at each further delivery
    generation: int  # trainer generation that leases it
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
class CommitResult:
    """``committed`` batches were freed; open batches, the first in ``left_open``, come again."""

    committed: int
    left_open: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RewindResult:
    """``replayed`` batches are delivered again; ``gone`` were already committed."""

    replayed: int
    gone: int
    repeated: bool = False  # known id: nothing was changed


@dataclass(frozen=True, slots=True)
class AdmissionGrant:
    """``n_seq`` sequences in flight, which count against the staleness budget."""

    admission_id: str
    env: int | None
    n_seq: int
    until: float  # s, clock of the API


@dataclass(frozen=True, slots=True)
class GroupCount:
    """Number of groups of a kind (state, env, size)."""

    state: GroupState
    env: int | None
    n_seq: int
    groups: int
    n_bytes: int = 0

    @property
    def sequences(self) -> int:
        return self.n_seq * self.groups


@dataclass(frozen=True, slots=True)
class DeadBatch:
    """A batch that was set aside; ``no`` 0 stands for all damaged groups."""

    no: int
    groups: int
    sequences: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class StateTotals:
    """Groups and sequences of this run that reached a final state."""

    groups: int = 0
    sequences: int = 0


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Counts of the store. The cost is O(kinds) and does not depend on the queue length."""

    group_counts: tuple[GroupCount, ...]  # BUFFERED, PENDING and LEASED only
    batches_acked: int  # includes committed batches
    delivered: int  # batches handed to the current trainer generation
    revision: int = 0  # revision of the run document
    batches_open: int = 0  # leased, and not acked
    batches_dead: int = 0
    retained_bytes: int = 0  # payloads kept: held, acked but not committed, or dead
    disk_bytes: int = 0  # payloads on disk, also retired; 0 without an archive
    totals: Mapping[GroupState, StateTotals] = field(default_factory=dict)  # ACKED .. DEAD
    fair_share: bytes | None = None
    batches_uncommitted: int = 0  # acked, and not committed
    dead_bytes: int = 0  # share of dead groups in retained_bytes
    # First open batches: no, sequences, deliveries, end of the lease (s).
    leases: tuple[tuple[int, int, int, float], ...] = ()

    @property
    def groups_held(self) -> int:
        return sum(group_count.groups for group_count in self.group_counts)

    @property
    def sequences_held(self) -> Counter[GroupState]:
        held: Counter[GroupState] = Counter()
        for group_count in self.group_counts:
            held[group_count.state] += group_count.sequences
        return held

    def totals_of(self, state: GroupState) -> StateTotals:
        return self.totals.get(state, StateTotals())

    @property
    def sequences_trained(self) -> int:
        """Sequences of all batches acked so far in this run."""
        states = (GroupState.ACKED, GroupState.COMMITTED)
        return sum(self.totals_of(state).sequences for state in states)

    @property
    def sequences_accepted(self) -> int:
        """Sequences held or trained on; dropped and dead groups are never trained on."""
        return self.sequences_held.total() + self.sequences_trained


@dataclass(frozen=True, slots=True)
class RunDocument:
    """The stored run. A save must name the latest revision."""

    revision: int
    generation: int
    body: bytes | None
    envs: tuple[bytes, ...] = ()  # documents of environments, ordered by their ids


class ReplyState(str, Enum):
    """State of the reply to a GET /batch."""

    SENDING = "sending"
    SENT = "sent"  # whole, to a connected client; the next GET acks its batch
    LOST = "lost"  # the next GET returns the same batch
    ACKED = "acked"


class BatchTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The last GET /batch that returned a batch. ``after`` is the last batch acked by a GET."""

    generation: int
    no: int = 0
    epoch: int = 0
    after: int = 0
    reply: ReplyState = ReplyState.ACKED


@dataclass(frozen=True, slots=True)
class Accepted:
    """Outcome of a posted group."""

    duplicate: bool
    buffered: bool
    buffer_size: int  # sequences in the buffer of its env


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivery of a batch: the batch, and the members for this consumer."""

    batch: LeasedBatch
    members: tuple[BatchMember, ...]
