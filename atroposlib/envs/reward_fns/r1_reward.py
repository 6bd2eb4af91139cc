"""Weighted sum of the reasoning format and the accuracy of the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.accuracy_x_reward import AccuracyXReward
from atroposlib.envs.reward_fns.format_reasoning_reward import FormatReasoningReward
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction

__all__ = ["AccuracyXReward", "FormatReasoningReward", "R1Reward"]


@registry.register("r1")
class R1Reward(RewardFunction):
    """``format_weight * format_reasoning + accuracy_weight * accuracy_x``.

    The format reward is 0.5, so at the default weights it adds 0.25 to the 1.0 of a right
    answer.
    """

    def __init__(
        self, format_weight: float = 0.5, accuracy_weight: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.format_weight = format_weight
        self.accuracy_weight = accuracy_weight
        self.format_reward = FormatReasoningReward()
        self.accuracy_reward = AccuracyXReward()

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        formats = self.format_reward.compute(completions, **kwargs)
        accuracies = self.accuracy_reward.compute(completions, **kwargs)
        return [
            self.format_weight * form + self.accuracy_weight * accuracy
            for form, accuracy in zip(formats, accuracies)
        ]


r1_reward = R1Reward.scores
