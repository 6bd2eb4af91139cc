r"""Accuracy reward: compares the answer as text and number, then by math-verify.

text -> after the reasoning -> at most 6 boxes -> last box, "#### ..." or "the answer is ..."
     -> equal text? number within a tolerance? -> math-verify against the gold answer
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.math_verify.checker import (
    MAX_ANSWER_CHARS,
    CheckFailed,
    in_box,
    shared_process,
)
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, reference_answers
from atroposlib.text.answers import ANNOUNCED, boxed_answers, same_answer, stated_answer
from atroposlib.text.parts import answer_of

logger = logging.getLogger(__name__)


@registry.register("accuracy")
class AccuracyReward(RewardFunction):
    """1.0 for the right answer; 0.0 for a wrong or missing answer, or without a gold answer.

    A comparison that fails or takes too long gives None, because its result is unknown.
    Comparisons block: call the reward through ``asyncio.to_thread`` in an environment.

    Args:
        tolerance: largest relative difference of equal numbers; whole numbers are equal only
            exactly.
        split_on_think_tag: read only the text after the reasoning.
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
            text = answer_of(text)
        gold = stated_answer(gold) or gold.strip()
        if len(boxed_answers(text)) > self.max_boxed_threshold or not gold:
            return 0.0
        stated = stated_answer(text)
        if stated is None:
            announced = list(ANNOUNCED.finditer(text))
            if not announced:
                return 0.0
            text = text[announced[-1].start() :]
        else:
            same = same_answer(stated, gold, self.tolerance)
            if same is not None:
                return float(same)
            if len(stated) > MAX_ANSWER_CHARS:
                return 0.0
            text = in_box(stated)
        try:
            return float(shared_process().equal(text, in_box(gold)))
        except CheckFailed as failure:
            logger.warning("no score: %s", failure)
            return None


accuracy_reward = AccuracyReward.scores
