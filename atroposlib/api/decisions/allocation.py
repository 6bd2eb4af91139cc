"""Allocations per environment, the staleness budget, and shards of a batch. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import floor

from atroposlib.api.common.records import BatchMember, GroupCount, GroupState
from atroposlib.api.common.run_record import EnvEntry
from atroposlib.api.decisions.exact_fill import minima_of
from atroposlib.errors import ConfigError
from atroposlib.wire import EnvStatus

MIN_ENV_WEIGHT = 0.01  # below it an env would get no inference slot and never recover
UNBOUNDED = 2**62  # more sequences than any run has; still fits the integers of every store


@dataclass(frozen=True)
class Supply:
    """Sums over the held groups and the live environments, computed once per change."""

    live: int  # environments
    asked: float  # sum of context length times weight over live environments
    reserved: Mapping[int, float]  # least share of a batch, by env
    largest: int  # sequences of the largest group
    own: Mapping[int | None, int]  # sequences, by env
    own_largest: Mapping[int | None, int]
    beyond: Mapping[int | None, int]  # sequences in whole packs, less the reserved sequences
    all_beyond: int


def supply_of(live: Sequence[EnvEntry], held: Sequence[GroupCount], batch_size: int) -> Supply:
    """Sum up ``held``: queued, leased and buffered groups alike.

    With the queue alone an env would exceed its off-policy bound by each batch in training.
    """
    minima = minima_of(live)
    largest = max((group_count.n_seq for group_count in held), default=1)
    own: Counter[int | None] = Counter()
    own_largest: dict[int | None, int] = {}
    for group_count in held:
        own[group_count.env] += group_count.sequences
        own_largest[group_count.env] = max(
            own_largest.get(group_count.env, 1), group_count.n_seq
        )
    beyond = {}
    for env, count in own.items():
        reserved = floor(batch_size * minima.get(env, 0.0)) if env is not None else 0
        beyond[env] = max(0, -(-count // largest) * largest - reserved)
    return Supply(
        live=len(live),
        asked=sum(env.max_token_length * max(0.0, env.weight) for env in live),
        reserved=minima,
        largest=largest,
        own=own,
        own_largest=own_largest,
        beyond=beyond,
        all_beyond=sum(beyond.values()),
    )


def env_weight(asking: EnvEntry, supply: Supply) -> float:
    """Share of the inference slots, by context length times weight."""
    if supply.asked <= 0:  # no env has a weight, so all get the same
        return 1.0 / max(1, supply.live)
    return max(MIN_ENV_WEIGHT, asking.max_token_length * asking.weight / supply.asked)


def env_status(
    asking: EnvEntry, supply: Supply, current_step: int, policy_version: int
) -> EnvStatus:
    """Reply to /status-env; queue sizes are in groups of the asking environment.

    Groups of further environments count in whole packs of the largest group, less the
    sequences that their minimum reserves.
    """
    env = asking.env_id
    own = supply.own.get(env, 0)
    rest = supply.all_beyond - supply.beyond.get(env, 0)
    group_size = max(1, asking.group_size, supply.own_largest.get(env, 1))
    return EnvStatus(
        current_step=current_step,
        queue_size=(own + rest) // group_size,
        unallocated_fraction=1.0 - min(1.0, sum(supply.reserved.values())),
        self_queue_size=own // group_size,
        max_group_size=supply.largest,
        env_weight=env_weight(asking, supply),
        policy_version=policy_version,
    )


# --- admission ------------------------------------------------------------------------


def budget(
    batch_size: int,
    max_staleness: int | None,
    policy_version: int,
    base_version: int,
    admission_base: int,
) -> int:
    """Sequences that may be accepted or admitted over the whole run (see ``sql.run.Admit``).

    A sequence that starts now is trained at the latest after all sequences accepted or
    admitted before it, and each version trains a batch. So ``max_staleness`` batches may
    be ahead of the batch in training, plus 1 for each version since ``base_version``.

    The count restarts at each registration and rewind: ``base_version`` is the policy
    version at that time and ``admission_base`` the number of sequences trained by then.
    Otherwise a trainer that restarts at an older version would have no budget left.

    Example: batches of 8, staleness 1, two versions after the base: (1 + 2 + 1) * 8 = 32.
    """
    if max_staleness is None:
        return UNBOUNDED
    versions = max(0, policy_version - base_version)
    return admission_base + (max_staleness + versions + 1) * batch_size


def unmet_minima(
    needs: Mapping[int, int],
    held: Sequence[GroupCount],
    admitted: Mapping[int | None, int],
) -> dict[int, int]:
    """Sequences that the next batch still lacks of each environment with a minimum.

    Queued, buffered and admitted sequences count. Room for these is kept from the admissions of
    the other environments: else these fill the budget, and no batch can form.

    Example: needs {0: 8, 1: 2}, 3 queued of 0, 2 admitted of 1 -> {0: 5}.
    """
    present = Counter(admitted)
    for count in held:
        if count.state in (GroupState.PENDING, GroupState.BUFFERED):
            present[count.env] += count.sequences
    lacking = {env: need - present[env] for env, need in needs.items()}
    return {env: sequences for env, sequences in lacking.items() if sequences > 0}


# --- shards ---------------------------------------------------------------------------

# Each rank requests its shard at any time and of any replica, so the split is a function of
# the batch alone. Longest first onto the lightest rank (Graham 1969) keeps the heaviest rank
# within 4/3 of the best split.


def shard(
    members: Sequence[BatchMember], world_size: int, rank: int
) -> tuple[BatchMember, ...]:
    """The members of ``rank``, oldest first; every member is in exactly 1 shard.

    No shard is empty if there are at least as many groups as ranks.

    Raises:
        ConfigError: the rank is outside of the world.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is not one of 0 .. {world_size - 1}")
    loads = [(0, place) for place in range(world_size)]  # (tokens, rank): ties to the first
    heapify(loads)
    mine = []
    for member in sorted(members, key=lambda member: (-member.cost, member.gid)):
        tokens, place = loads[0]
        if place == rank:
            mine.append(member)
        heapreplace(loads, (tokens + member.cost, place))
    return tuple(sorted(mine, key=lambda member: member.gid))
