"""Containment reward: the expected text occurs in the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, reference_answers
from atroposlib.text.parts import answer_of


@registry.register("accuracy_x")
class AccuracyXReward(RewardFunction):
    """``reward_value`` where the text after the reasoning contains ``solution``.

    0.0 without a solution or with an empty solution.

    Args:
        exact_match: the response must equal the solution, apart from white space around it.
    """

    def __init__(
        self,
        exact_match: bool = False,
        case_sensitive: bool = False,
        reward_value: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.exact_match = exact_match
        self.case_sensitive = case_sensitive
        self.reward_value = reward_value

    def compute(
        self,
        completions: Sequence[Any],
        solution: Any = None,
        ground_truth: Any = None,
        **kwargs: Any,
    ) -> list[float]:
        """``reward_value`` or 0.0 for each; ``ground_truth`` stands in for ``solution``."""
        golds = reference_answers(len(completions), solution, ground_truth)
        texts = map(self.get_content, completions)
        return [
            self.reward_value if self._is_right(text, gold or "") else 0.0
            for text, gold in zip(texts, golds)
        ]

    def _is_right(self, text: str, gold: str) -> bool:
        response, gold = answer_of(text).strip(), gold.strip()
        if not self.case_sensitive:
            response, gold = response.lower(), gold.lower()
        if not gold:
            return False
        return response == gold if self.exact_match else gold in response


accuracy_x_reward = AccuracyXReward.scores
