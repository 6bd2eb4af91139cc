"""Reasoning-steps reward: numbered steps, lists and transition words in a text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.errors import ConfigError

TRANSITIONS = (
    "first|firstly|second|secondly|third|thirdly|next|then|after that|finally|lastly|"
    "therefore|thus|hence|consequently|as a result|because|since|so|however|moreover|"
    "furthermore|additionally|in conclusion"
)
PATTERNS = {
    "numbered_steps": re.compile(r"\bstep\s+\d+", re.IGNORECASE),
    "list_numbers": re.compile(r"^[ \t]*\d+[.)][ \t]", re.MULTILINE),
    "bullet_points": re.compile(r"^[ \t]*[-*•][ \t]", re.MULTILINE),
    "transition_words": re.compile(rf"\b(?:{TRANSITIONS})\b", re.IGNORECASE),
}
WEIGHTS = {
    "numbered_steps": 0.5,
    "list_numbers": 0.5,
    "bullet_points": 0.4,
    "transition_words": 0.3,
}


@registry.register("reasoning_steps")
class ReasoningStepsReward(RewardFunction):
    """Sum over the patterns of ``weight * min(1, matches / min_steps)``, at most 1.0.

    Args:
        min_words: a text with more words than this also gets ``base_score``.
        min_steps: matches of a pattern that earn its whole weight.
        pattern_weights: changes to the weights; the names are the keys of ``PATTERNS``.
    """

    def __init__(
        self,
        min_words: int = 10,
        min_steps: int = 3,
        base_score: float = 0.1,
        pattern_weights: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        unknown = sorted(set(pattern_weights or {}) - set(PATTERNS))
        if unknown:
            raise ConfigError(f"pattern_weights: {unknown[0]!r} is none of {list(PATTERNS)}")
        self.min_words = min_words
        self.min_steps = min_steps
        self.base_score = base_score
        self.pattern_weights = {**WEIGHTS, **(pattern_weights or {})}

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        return [self._score(self.get_content(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        score = self.base_score if len(text.split()) > self.min_words else 0.0
        for name, weight in self.pattern_weights.items():
            matches = len(PATTERNS[name].findall(text))
            score += weight * min(1.0, matches / self.min_steps)
        return min(1.0, score)


reasoning_steps_reward = ReasoningStepsReward.scores
