"""Shares of environments: minima of a batch, and what /status-env reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil, floor

from atroposlib.api.common.records import BatchMember, EnvEntry, GroupCount
from atroposlib.errors import ConfigError
from atroposlib.wire import EnvStatus

MIN_ENV_WEIGHT = 0.01  # below it an env would get no inference slot at all and never recover
UNBOUNDED = 2**62  # more sequences than any run has; still fits the integers of every store
_ROUNDING = 1e-9  # 0.1 * 30 is 3.0000000000000004, which must stay 3


def minimum_sequences(minima: Mapping[int, float], batch_size: int) -> dict[int, int]:
    """Sequences that each batch holds at least, by env.

    A share is rounded up, since rounding down turns a small minimum into none. If the
    rounded shares pass the batch, all of them shrink in proportion, rounded down.

    Example: {0: 0.25, 1: 0.1} of 16 -> {0: 4, 1: 2}; {0: 1.0, 1: 1.0} of 9 -> {0: 4, 1: 4}.
    """
    needs = {
        env: ceil(batch_size * share - _ROUNDING) for env, share in minima.items() if share > 0
    }
    total = sum(needs.values())
    if total > batch_size:
        needs = {env: need * batch_size // total for env, need in needs.items()}
    return {env: need for env, need in needs.items() if need > 0}


def minima_of(envs: Sequence[EnvEntry]) -> dict[int, float]:
    """The minimum of each env that asked for one, by env id."""
    return {
        env.env_id: env.min_batch_allocation
        for env in envs
        if env.min_batch_allocation is not None
    }


@dataclass(frozen=True)
class Supply:
    """What is held and who takes part, added up once for all who ask."""

    live: int  # environments
    asked: float  # by all of them: context length times weight
    reserved: Mapping[int, float]  # least share of a batch, by env
    largest: int  # sequences of the largest group
    own: Mapping[int | None, int]  # sequences, by env
    own_largest: Mapping[int | None, int]
    beyond: Mapping[int | None, int]  # sequences in whole packs, less what is reserved
    all_beyond: int


def supply_of(live: Sequence[EnvEntry], held: Sequence[GroupCount], batch_size: int) -> Supply:
    """``held`` counts queued, leased and buffered groups alike: an env that saw only the
    queue would overshoot its off-policy bound by each batch in training."""
    minima = minima_of(live)
    largest = max((group_count.n_seq for group_count in held), default=1)
    own: dict[int | None, int] = {}
    own_largest: dict[int | None, int] = {}
    for group_count in held:
        own[group_count.env] = own.get(group_count.env, 0) + group_count.sequences
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
    if supply.asked <= 0:  # nobody asked for a share, so all get the same
        return 1.0 / max(1, supply.live)
    return max(MIN_ENV_WEIGHT, asking.max_token_length * asking.weight / supply.asked)


def env_status(
    asking: EnvEntry, supply: Supply, current_step: int, policy_version: int
) -> EnvStatus:
    """What one environment needs to pace itself; queue sizes are in its own groups.

    What others hold counts in whole packs of the largest group, less what their minimum
    reserves.
    """
    env = asking.env_id
    own = supply.own.get(env, 0)
    others = supply.all_beyond - supply.beyond.get(env, 0)
    group_size = max(1, asking.group_size, supply.own_largest.get(env, 1))
    return EnvStatus(
        current_step=current_step,
        queue_size=(own + others) // group_size,
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
    """Sequences that may be accepted or admitted over the whole run (see ``Store.admit``).

    A sequence that begins now is trained at the latest after everything accepted or
    admitted before it; each version trains one batch. So ``max_staleness`` batches may be
    ahead of the one in training, plus one for each version since ``base_version``.

    The count begins anew at each registration and rewind: ``base_version`` is the policy
    version then and ``admission_base`` the sequences trained by then. Otherwise a trainer
    that restarts at an older version would find the budget spent, for ever.

    Example: batches of 8, staleness 1, two versions after the base: (1 + 2 + 1) * 8 = 32.
    """
    if max_staleness is None:
        return UNBOUNDED
    versions = max(0, policy_version - base_version)
    return admission_base + (max_staleness + versions + 1) * batch_size


# --- shards ---------------------------------------------------------------------------


def shard(
    members: Sequence[BatchMember], world_size: int, rank: int
) -> tuple[BatchMember, ...]:
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


def _cost(member: BatchMember) -> int:
    """Trained tokens. At least one a row: groups that train nothing spread out as well."""
    return max(member.n_tokens, member.n_seq, 1)
