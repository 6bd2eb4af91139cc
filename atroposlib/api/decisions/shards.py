"""One batch split over the ranks of a trainer. Pure and deterministic.

Each rank asks for its shard by itself, at any time and of any replica, so the split is a
function of the batch alone. Longest first onto the lightest rank (Graham 1969) keeps the
heaviest rank within 4/3 of the best split.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

from atroposlib.api.common.records import Member
from atroposlib.errors import ConfigError


def shard(members: Sequence[Member], world_size: int, rank: int) -> tuple[Member, ...]:
    """The members of ``rank``, oldest first; every member is in exactly one shard.

    No shard is empty if there are as many groups as ranks.

    Raises:
        ConfigError: there is no such rank.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is not one of 0 .. {world_size - 1}")
    loads = [(0, place) for place in range(world_size)]  # (tokens, rank): ties to the first
    heapify(loads)
    mine = []
    for member in sorted(members, key=lambda member: (-_cost(member), member.gid)):
        tokens, place = loads[0]
        if place == rank:
            mine.append(member)
        heapreplace(loads, (tokens + _cost(member), place))
    return tuple(sorted(mine, key=lambda member: member.gid))


def _cost(member: Member) -> int:
    """Trained tokens. At least one a row: groups that train nothing spread out as well."""
    return max(member.n_tokens, member.n_seq, 1)
