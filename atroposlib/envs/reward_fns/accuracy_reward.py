r"""Accuracy reward: compares the answer as a number, then by math-verify.

text -> after the last </think> -> at most 6 boxes -> math-verify against the gold answer
                                                  -> else the first number in a box or
                                                     after "####", within a tolerance
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from atroposlib.envs.reward_fns.math_verify.checker import (
    CheckFailed,
    after_thinking,
    as_number,
    boxed,
    shared_process,
)
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, reference_answers

logger = logging.getLogger(__name__)

_NUMBER_PLACE = re.compile(r"\\boxed\{([^{}]*)\}|####\s*([^\n]*)")


@registry.register("accuracy")
class AccuracyReward(RewardFunction):
    """1.0 for the right answer; 0.0 for a wrong or missing one, or without a gold answer.

    A comparison that fails or takes too long gives None, because its result is unknown.
    Comparisons block: call the reward through ``asyncio.to_thread`` in an environment.

    Args:
        tolerance: largest absolute difference of equal numbers.
        split_on_think_tag: read only the text after the last ``</think>``.
        max_boxed_threshold: a text with more boxes than this, a list of guesses, gets 0.0.
    """

    def __init__(
        self,
        tolerance: float = 1e-6,
        split_on_think_tag: bool = True,
        max_boxed_threshold: int = 6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tolerance = tolerance
        self.split_on_think_tag = split_on_think_tag
        self.max_boxed_threshold = max_boxed_threshold

    def compute(
        self,
        completions: Sequence[Any],
        solution: Any = None,
        ground_truth: Any = None,
        **kwargs: Any,
    ) -> list[float | None]:
        """1.0, 0.0 or None for each; ``ground_truth`` is preferred to ``solution``."""
        golds = reference_answers(len(completions), ground_truth, solution)
        pairs = zip(map(self.get_content, completions), golds)
        return [0.0 if gold is None else self._score(text, gold) for text, gold in pairs]

    def _score(self, text: str, gold: str) -> float | None:
        if self.split_on_think_tag:
            text = after_thinking(text)
        boxes = text.count("\\boxed")
        gold = gold.rpartition("####")[2].strip()
        if boxes > self.max_boxed_threshold or not gold:
            return 0.0
        given, expected = _first_number(text), as_number(gold)
        if expected is None:
            expected = _first_number(gold)
        numbers = given is not None and expected is not None
        if numbers and abs(float(given - expected)) <= self.tolerance:  # type: ignore[operator]
            return 1.0
        if not text.strip() or (numbers and boxes == 1):
            return 0.0
        try:
            equal = shared_process().equal(text, gold if "\\boxed" in gold else boxed(gold))
        except CheckFailed as failure:
            logger.warning("no score: %s", failure)
            return None
        return float(equal)


accuracy_reward = AccuracyReward.scores


def _first_number(text: str) -> Decimal | None:
    place = _NUMBER_PLACE.search(text)
    return None if place is None else as_number(place.group(1) or place.group(2) or "")
