"""Accuracy reward with a format bonus for right answers only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.accuracy_reward import AccuracyReward
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction

FORMAT_BONUS = 0.5
# One block of reasoning at the beginning and no other think tag. Both parts may contain other
# "<" characters, which occur in comparisons and code.
_NO_TAG = r"(?:(?!</?think>).)*"
_FORMAT = re.compile(f"<think>{_NO_TAG}</think>{_NO_TAG}", re.DOTALL)


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
        accuracy + FORMAT_BONUS if accuracy and _FORMAT.fullmatch(text) else accuracy
        for accuracy, text in zip(accuracies, texts)
    ]
