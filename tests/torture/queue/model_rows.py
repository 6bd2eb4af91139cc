"""Groups and batches of the reference model."""

from __future__ import annotations

from dataclasses import dataclass, field

from atroposlib.api.common.records import HELD, GroupState, GroupSummary, NewGroup

S = GroupState
KEEPS_PAYLOAD = HELD | {S.ACKED, S.DEAD}
NOBODY = -1  # generation of a batch that a rewind reopened


@dataclass
class ModelGroup:
    gid: int
    new: NewGroup
    state: GroupState

    def summary(self) -> GroupSummary:
        new = self.new
        facts = (new.env, new.n_seq, new.n_tokens, new.version, new.arrived_version)
        return GroupSummary(self.gid, *facts)


@dataclass
class ModelBatch:
    no: int
    gids: tuple[int, ...]
    min_version: int | None
    dropped: int
    state: GroupState = S.LEASED  # PENDING: dissolved, its groups went back
    epoch: int = 0
    since: int = 1  # first epoch of the claim that holds it
    tries: int = 0  # deliveries since it was last acked
    generation: int = 0
    lease_until: float = 0.0
    claim_id: str | None = None
    world_size: int = 1
    ranks: set[int] = field(default_factory=set)
