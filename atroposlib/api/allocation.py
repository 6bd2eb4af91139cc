"""Shares of environments: minima of a batch, and what /status-env reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor

from atroposlib.api.records import EnvEntry, Tally
from atroposlib.wire import EnvStatus

MIN_ENV_WEIGHT = 0.01  # below it an env would get no inference slot at all and never recover
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


def env_weight(asking: EnvEntry, live: Sequence[EnvEntry]) -> float:
    """Share of the inference slots, by context length times weight."""
    total = sum(env.max_token_length * max(0.0, env.weight) for env in live)
    if total <= 0:  # nobody asked for a share, so all get the same
        return 1.0 / max(1, len(live))
    return max(MIN_ENV_WEIGHT, asking.max_token_length * asking.weight / total)


def env_status(
    asking: EnvEntry,
    live: Sequence[EnvEntry],
    held: Sequence[Tally],
    batch_size: int,
    current_step: int,
    policy_version: int,
) -> EnvStatus:
    """What one environment needs to pace itself; queue sizes are in its own groups.

    ``held`` counts queued, leased and buffered groups alike: an env that saw only the
    queue would overshoot its off-policy bound by each batch in training. What others
    hold counts in whole packs of the largest group, less what their minimum reserves.
    """
    minima = minima_of(live)
    largest = max((tally.n_seq for tally in held), default=1)
    sequences: dict[int | None, int] = {}
    for tally in held:
        sequences[tally.env] = sequences.get(tally.env, 0) + tally.sequences
    own = sequences.pop(asking.env_id, 0)
    others = 0
    for env, count in sequences.items():
        reserved = floor(batch_size * minima.get(env, 0.0)) if env is not None else 0
        others += max(0, -(-count // largest) * largest - reserved)
    own_sizes = [tally.n_seq for tally in held if tally.env == asking.env_id]
    group_size = max([1, asking.group_size, *own_sizes])
    return EnvStatus(
        current_step=current_step,
        queue_size=(own + others) // group_size,
        unallocated_fraction=1.0 - min(1.0, sum(minima.values())),
        self_queue_size=own // group_size,
        max_group_size=largest,
        env_weight=env_weight(asking, live),
        policy_version=policy_version,
    )
