"""Weighted sum of several rewards, optionally normalised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.errors import ConfigError

NORMALIZATIONS = ("none", "sum", "minmax")
Part = Union[str, Mapping[str, Any], RewardFunction]


@registry.register("combined")
class CombinedReward(RewardFunction):
    """The sum of ``weight * score`` over the parts; None where a part has no score.

    Args:
        rewards: names, configurations (with a ``weight`` each) or rewards.
        normalization: ``none``; ``sum`` divides by the sum of the weights; ``minmax`` maps
            the completions of a call to 0..1, and equal scores to 0.0.

    Raises ConfigError: no parts, an unknown normalization, or weights with a sum of 0 or less.
    """

    def __init__(
        self, rewards: Sequence[Part], normalization: str = "none", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if normalization not in NORMALIZATIONS:
            raise ConfigError(f"normalization: {normalization!r} is none of {NORMALIZATIONS}")
        self.normalization = normalization
        self.reward_functions = [
            part if isinstance(part, RewardFunction) else registry.create(part)
            for part in rewards
        ]
        if not self.reward_functions:
            raise ConfigError("rewards: at least one is needed")
        self.total_weight = sum(part.weight for part in self.reward_functions)
        if normalization == "sum" and self.total_weight <= 0:
            raise ConfigError(
                f"rewards: weights sum to {self.total_weight}; sum divides by it"
            )

    def set_wandb_logger(self, logger: Any) -> None:
        super().set_wandb_logger(logger)
        for part in self.reward_functions:
            part.set_wandb_logger(logger)

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
        columns = [part(completions, **kwargs) for part in self.reward_functions]
        sums = [_sum(scores) for scores in zip(*columns)]
        if self.normalization == "sum":
            return [None if total is None else total / self.total_weight for total in sums]
        return _to_unit_range(sums) if self.normalization == "minmax" else sums


def _sum(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return sum(known) if len(known) == len(scores) else None  # a sum needs all its parts


def _to_unit_range(scores: Sequence[float | None]) -> list[float | None]:
    known = [score for score in scores if score is not None]
    low, width = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    return [
        None if score is None else (score - low) / width if width > 0 else 0.0
        for score in scores
    ]
