"""Crossword-format reward: answers like ``1-Across: WORD``, letters only."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.text.parts import answer_of

DEFAULT_PATTERNS = (r"\b\d+-(?:Across|Down):[ \t]*(\S+)",)


@registry.register("crossword_format")
class CrosswordFormatReward(RewardFunction):
    """``reward_value`` for an answer or more, all of valid letters; else 0.0.

    Args:
        format_patterns: regular expressions. The last group of each is the answer; of a pattern
            without a group the text behind the last colon.
        penalize_invalid_chars: False accepts any letters.
        valid_chars: A to Z unless given; case matters.
    """

    def __init__(
        self,
        format_patterns: Sequence[str] | None = None,
        reward_value: float = 1.0,
        penalize_invalid_chars: bool = True,
        valid_chars: Iterable[str] = string.ascii_uppercase,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.format_patterns = [re.compile(p) for p in format_patterns or DEFAULT_PATTERNS]
        self.reward_value = reward_value
        self.penalize_invalid_chars = penalize_invalid_chars
        self.valid_chars = frozenset(valid_chars)

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        texts = map(self.get_content, completions)
        return [self.reward_value if self._is_right(text) else 0.0 for text in texts]

    def _is_right(self, text: str) -> bool:
        answers = [
            _answer(match)
            for pattern in self.format_patterns
            for match in pattern.finditer(answer_of(text))
        ]
        if self.penalize_invalid_chars:
            return bool(answers) and all(self.valid_chars.issuperset(a) for a in answers)
        return bool(answers)


def _answer(match: re.Match[str]) -> str:
    if match.lastindex:
        return match.group(match.lastindex)
    return match.group().rpartition(":")[2].strip()


crossword_format_reward = CrosswordFormatReward.scores
