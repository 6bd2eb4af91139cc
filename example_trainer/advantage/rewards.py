"""Reward shaping: a plug-in, overlong penalty, bias, scale, clip.

    0  r <- reward_shaping(r, settings, lengths, finish reasons)   a function of the user's
    1  r <- r - overlong penalty                  DAPO, arXiv 2503.14476, eq. 13
    2  r <- (r + reward_bias) * reward_scale
    3  r <- r within plus and minus reward_clip

The overlong penalty rises linearly over the last ``overlong_tokens`` before
``max_new_tokens``, where it is ``overlong_penalty``, and never more. A row that was really
cut off (finish reason "length") loses all of it at any length, because the limit may have
been that of a turn, or of the model's context.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.utils.command import plugins
from example_trainer.settings.loss import AdvantageSettings

TRUNCATED = "length"  # finish reason of a row that was cut off
# Squares of larger numbers overflow; a reward of this size is a mistake of units anyway.
LARGEST_REWARD = 1e100


def shape_rewards(
    rewards_R: Sequence[float],
    settings: AdvantageSettings,
    lengths_R: Sequence[float] | None,
    finish_reasons_R: Sequence[str | None] | None,
) -> list[float]:
    """The rewards of rows after a plug-in, overlong penalty, bias, scale and clip.

    Args:
        lengths_R: trained tokens of each row.

    Raises:
        ConfigError: an overlong penalty without max_new_tokens or lengths.
        InvalidGroup: a reward is not finite after all that; names the row.
    """
    if settings.reward_shaping is not None:
        rewards_R = _shape_by_plugin(rewards_R, settings, lengths_R, finish_reasons_R)
    if settings.overlong_tokens:
        rewards_R = [
            reward - penalty
            for reward, penalty in zip(
                rewards_R, overlong_penalties(settings, lengths_R, finish_reasons_R)
            )
        ]
    rewards_R = [
        (reward + settings.reward_bias) * settings.reward_scale for reward in rewards_R
    ]
    if (bound := settings.reward_clip) is not None:
        rewards_R = [min(max(reward, -bound), bound) for reward in rewards_R]
    return finite_floats("rewards", rewards_R)


def _shape_by_plugin(
    rewards_R: Sequence[float],
    settings: AdvantageSettings,
    lengths_R: Sequence[float] | None,
    finish_reasons_R: Sequence[str | None] | None,
) -> list[float]:
    own = plugins.load_plugin(plugins.SHAPING, str(settings.reward_shaping))
    result = own(list(rewards_R), settings, lengths_R, finish_reasons_R)
    try:
        return finite_floats("rewards", result, len(rewards_R))
    except (InvalidGroup, TypeError) as error:
        problem = f"has to return a reward for each reward: {error}"
        raise plugins.result_error(plugins.SHAPING, own, problem) from error


def overlong_penalties(
    settings: AdvantageSettings,
    lengths_R: Sequence[float] | None,
    finish_reasons_R: Sequence[str | None] | None,
) -> list[float]:
    if settings.max_new_tokens is None or lengths_R is None:
        raise ConfigError(
            "overlong_tokens counts back from max_new_tokens in the length of each row; set"
            " max_new_tokens, and pass lengths"
        )
    reasons_R = finish_reasons_R or [None] * len(lengths_R)
    free = settings.max_new_tokens - settings.overlong_tokens
    penalties = []
    for length, reason in zip(lengths_R, reasons_R):
        share = 1.0 if reason == TRUNCATED else (length - free) / settings.overlong_tokens
        penalties.append(settings.overlong_penalty * min(max(share, 0.0), 1.0))
    return penalties


def to_list(values: Any) -> list[Any]:
    """A list of Python values from a list, a tuple, an array or a tensor."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    # Numbers of an array or tensor: as group ids, two equal tensors would differ.
    return [value.item() if hasattr(value, "item") else value for value in values]


def finite_floats(field: str, values: Any, expected: int | None = None) -> list[float]:
    """Finite floats from anything ``to_list`` takes.

    Raises InvalidGroup unless there are ``expected`` finite numbers; names the row.
    """
    entries = of_length(field, to_list(values), expected)
    return [_number(field, row, value) for row, value in enumerate(entries)]


def of_length(field: str, values: list[Any], expected: int | None) -> list[Any]:
    if expected is not None and len(values) != expected:
        raise InvalidGroup(field, "", f"{len(values)} entries for {expected} rows")
    return values


def rows_by_group(group_ids_R: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Rows of each group, by id, wherever they stand in the batch."""
    rows: dict[Hashable, list[int]] = {}
    for row, group in enumerate(group_ids_R):
        rows.setdefault(group, []).append(row)
    return rows


def _number(field: str, row: int, value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not abs(number) <= LARGEST_REWARD:  # also NaN
        raise InvalidGroup(
            field, f"[{row}]", f"not a finite number within plus and minus {LARGEST_REWARD:g}"
        )
    return number
