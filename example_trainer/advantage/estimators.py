"""Advantage estimators: a function and a line in ESTIMATORS each, or a plug-in.

With r the shaped rewards (see ``rewards``), over the rows of a group or of the batch:

    grpo                   (r - group mean) / group std               arXiv 2402.03300
    dr_grpo                r - group mean                             arXiv 2503.20783
    rloo                   r - mean of the rest of the group          arXiv 2402.14740
    lite_ppo               (r - group mean) / batch std of r          arXiv 2508.08221
    maxrl                  (r - group mean) / group mean of r >= 0    arXiv 2602.02710
    reinforce_pp           r, then normalised over the batch          arXiv 2501.03262
    reinforce_pp_baseline  r - group mean, then normalised over the batch
    role                   r - exponential mean of the row's role     see ``roles``
    gae                    r, over tokens by gamma and lambda         see ``gae``
    raw                    r

Groups are identified by id alone, so a lost row never mixes two prompts. Deviations are
of the population, plus ``advantage_eps``, and at least 1e-8. A group of a single row has the
baseline 0 and the deviation 1 in every estimator but role: its advantage is its reward.

"Normalised over the batch" is to mean 0 and deviation 1 with every trained token counting
once; ``advantage_norm batch`` does it after any estimator, ``group`` over each group.

``gae.token_advantages`` spreads the advantage of a row over its tokens. A row cut off at the
token limit ends like every row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.utils.command import plugins
from example_trainer.advantage.rewards import (
    finite_floats,
    of_length,
    rows_by_group,
    shape_rewards,
    to_list,
)
from example_trainer.advantage.roles import RoleBaselines
from example_trainer.settings.loss import AdvantageSettings

# Below this rewards are equal but for rounding; dividing by less would blow rounding
# errors up to advantages.
STD_FLOOR = 1e-8


def compute(
    rewards: Any,
    group_ids: Any,
    cfg: object = None,
    *,
    lengths: Any = None,
    finish_reasons: Any = None,
    normalise: bool = True,
    roles: Sequence[str] | None = None,
    baselines: RoleBaselines | None = None,
) -> list[float]:
    """Advantages of the rows, (R,).

    Args:
        rewards: (R,) numbers; a list, a tuple, an array or a tensor, like all sequences here.
        group_ids: (R,) hashable; rows that answer the same prompt share an id.
        cfg: TrainingConfig, or any object with some of its fields; None: plain GRPO.
        lengths: (R,) trained tokens of each row, for the overlong penalty and as weights
            when normalising over the batch; without them each row counts once.
        finish_reasons: (R,) as the engine returned them, or None; for the overlong penalty.
        normalise: False leaves normalising over the batch to ``normalise_tokens``, for
            callers that change single tokens first.
        roles, baselines: (R,) and the baselines so far, of the estimator role; without them
            all rows have a role that is seen first.

    Raises:
        InvalidGroup: a reward is not a finite number (names the row), or the lists differ
            in length.
        ConfigError: the estimator is unknown, or a setting lacks what it needs.
    """
    settings = AdvantageSettings.of(cfg)
    is_own = plugins.target_of(plugins.ESTIMATOR, settings.advantage, ESTIMATORS) is not None
    rewards_R = finite_floats("rewards", rewards)
    count = len(rewards_R)
    groups = rows_by_group(of_length("group_ids", to_list(group_ids), count))
    lengths_R = None if lengths is None else finite_floats("lengths", lengths, count)
    reasons_R = finish_reasons
    if reasons_R is not None:
        reasons_R = of_length("finish_reasons", to_list(reasons_R), count)
    rewards_R = shape_rewards(rewards_R, settings, lengths_R, reasons_R)
    if settings.advantage == "maxrl" and any(reward < 0 for reward in rewards_R):
        raise ConfigError(
            "advantage maxrl takes rewards as chances of success: from 0 up, also after"
            " reward_bias and an overlong penalty"
        )
    if settings.advantage == "role":
        roles_R, known = roles or [""] * count, baselines or RoleBaselines()
        means_R = known.take(roles_R, rewards_R, settings.role_decay)
        advantages_R = [reward - mean for reward, mean in zip(rewards_R, means_R)]
    else:
        estimate = _estimate_by_plugin if is_own else _estimate
        advantages_R = estimate(settings, rewards_R, groups)
    if normalise and normalises(settings):
        weights_R = lengths_R or [1.0] * count
        by_group = settings.advantage_norm == "group"
        for rows in groups.values() if by_group else [range(count)]:
            values = [advantages_R[row] for row in rows]
            weights = [weights_R[row] for row in rows]
            for row, value in zip(rows, _normalise(values, weights)):
                advantages_R[row] = value
    return advantages_R


def normalises(settings: AdvantageSettings) -> bool:
    """Whether advantages are normalised over the batch or each group, as the last step."""
    return settings.advantage_norm != "none" or settings.advantage in (
        "reinforce_pp",
        "reinforce_pp_baseline",
    )


def normalise_tokens(
    advantages_R_T: Sequence[Sequence[float]], group_ids: Sequence[Hashable] = ()
) -> list[list[float]]:
    """To mean 0 and deviation 1 over all tokens of the batch; all 0 where all are equal.

    With ``group_ids`` (R,) over the tokens of each group.
    """
    if group_ids:
        values_R_T = [list(row) for row in advantages_R_T]
        for rows in rows_by_group(group_ids).values():
            for row, normal in zip(rows, normalise_tokens([values_R_T[row] for row in rows])):
                values_R_T[row] = normal
        return values_R_T
    flat = [value for row in advantages_R_T for value in row]
    values = iter(_normalise(flat, [1.0] * len(flat)))
    return [[next(values) for _ in row] for row in advantages_R_T]


def has_varied_rewards(rewards: Any, group_ids: Any) -> list[bool]:
    """Whether each row's group has unequal rewards: DAPO's dynamic filter, (R,).

    Equal means exactly equal; pass rewards as the environment gave them, since a length
    penalty would make any group vary. A group of a single row never varies.
    """
    rewards_R = finite_floats("rewards", rewards)
    ids_R = of_length("group_ids", to_list(group_ids), len(rewards_R))
    vary = {
        group: len({rewards_R[row] for row in rows}) > 1
        for group, rows in rows_by_group(ids_R).items()
    }
    return [vary[group] for group in ids_R]


class _Moments(NamedTuple):
    """Moments of the rewards of a row's group, of two rows at least, and of the batch."""

    mean: float
    std: float
    size: int
    batch_std: float
    eps: float = 0.0  # added to a deviation that is divided by


def _raw(reward: float, of: _Moments) -> float:
    return reward


def _centre(reward: float, of: _Moments) -> float:
    return reward - of.mean


def _rloo(reward: float, of: _Moments) -> float:
    # r - (n mean - r) / (n - 1) = (r - mean) n / (n - 1), which is exactly 0 for equals.
    return (reward - of.mean) * of.size / (of.size - 1)


ESTIMATORS: dict[str, Callable[[float, _Moments], float]] = {
    "grpo": lambda reward, of: (reward - of.mean) / _divisor(of.std + of.eps),
    "dr_grpo": _centre,
    "rloo": _rloo,
    "lite_ppo": lambda reward, of: (reward - of.mean) / _divisor(of.batch_std + of.eps),
    "maxrl": lambda reward, of: (reward - of.mean) / _divisor(of.mean),
    "reinforce_pp": _raw,
    "reinforce_pp_baseline": _centre,
    "role": _centre,  # ``compute`` gives the mean of the row's role
    "gae": _raw,
    "raw": _raw,
}


def _estimate(
    settings: AdvantageSettings,
    rewards_R: list[float],
    groups: Mapping[Hashable, Sequence[int]],
) -> list[float]:
    """The advantage of every row that shares its group; the reward of a row alone in it."""
    _, batch_std = _moments(rewards_R, [1.0] * len(rewards_R))
    advantages_R = list(rewards_R)
    for rows in groups.values():
        if len(rows) == 1:
            continue
        mean, std = _moments([rewards_R[row] for row in rows], [1.0] * len(rows))
        of = _Moments(mean, std, len(rows), batch_std, settings.advantage_eps)
        for row in rows:
            advantages_R[row] = ESTIMATORS[settings.advantage](rewards_R[row], of)
    return advantages_R


def _estimate_by_plugin(
    settings: AdvantageSettings,
    rewards_R: list[float],
    groups: Mapping[Hashable, Sequence[int]],
) -> list[float]:
    own = plugins.load_plugin(plugins.ESTIMATOR, settings.advantage)
    result = own(list(rewards_R), [list(rows) for rows in groups.values()], settings)
    try:
        return finite_floats("advantages", result, len(rewards_R))
    except (InvalidGroup, TypeError) as error:
        problem = f"has to return an advantage for each reward: {error}"
        raise plugins.result_error(plugins.ESTIMATOR, own, problem) from error


def _normalise(values_N: list[float], weights_N: Sequence[float]) -> list[float]:
    if not any(weights_N):  # no token at all
        return values_N
    mean, std = _moments(values_N, weights_N)
    return [(value - mean) / _divisor(std) for value in values_N]


def _moments(values_N: Sequence[float], weights_N: Sequence[float]) -> tuple[float, float]:
    """Weighted mean and population deviation."""
    counted = [(value, weight) for value, weight in zip(values_N, weights_N) if weight]
    if len({value for value, _ in counted}) <= 1:
        # Exact: the computed mean of equal floats can differ from their value by rounding.
        return (counted[0][0] if counted else 0.0), 0.0
    total = math.fsum(weight for _, weight in counted)
    mean = math.fsum(value * weight for value, weight in counted) / total
    variance = math.fsum((value - mean) ** 2 * weight for value, weight in counted) / total
    return mean, math.sqrt(variance)


def _divisor(std: float) -> float:
    return max(std, STD_FLOOR)
