"""Accuracy reward with a format bonus for right answers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.accuracy_reward import AccuracyReward
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.text.parts import is_well_formed

FORMAT_BONUS = 0.5


@registry.register("cascading_r1_math")
def cascading_r1_math_reward(
    completions: Sequence[Any], solution: Any = None, ground_truth: Any = None, **kwargs: Any
) -> list[float | None]:
    """1.5 for right in the right format, 1.0 for right, else 0.0; None where not checked."""
    accuracies = AccuracyReward().compute(
        completions, solution=solution, ground_truth=ground_truth
    )
    texts = map(RewardFunction.get_content, completions)
    return [
        accuracy + FORMAT_BONUS if accuracy and is_well_formed(text) else accuracy
        for accuracy, text in zip(accuracies, texts)
    ]
