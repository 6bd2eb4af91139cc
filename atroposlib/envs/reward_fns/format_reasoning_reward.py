"""Reasoning-format reward: a single block of reasoning and a response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.text.parts import split


@registry.register("format_reasoning")
class FormatReasoningReward(RewardFunction):
    """``reward_value`` for exactly one stretch of reasoning with content, and a response.

    The reasoning may have been opened by the prompt.

    Args:
        require_thinking: False also accepts a text without a block.
        require_response: False also accepts a block without a response.
        allow_multiple_thinking: accept several blocks, each with content.
    """

    def __init__(
        self,
        reward_value: float = 0.5,
        require_thinking: bool = True,
        require_response: bool = True,
        allow_multiple_thinking: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reward_value = reward_value
        self.require_thinking = require_thinking
        self.require_response = require_response
        self.allow_multiple_thinking = allow_multiple_thinking

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        texts = map(self.get_content, completions)
        return [self.reward_value if self._is_right(text) else 0.0 for text in texts]

    def _is_right(self, text: str) -> bool:
        parts = split(text)
        if parts.answer is None:
            return False  # the reasoning never ended
        answered = bool(parts.answer.strip())
        if not parts.thoughts:
            return answered and not self.require_thinking
        if len(parts.thoughts) > 1 and not self.allow_multiple_thinking:
            return False
        return all(parts.thoughts) and (answered or not self.require_response)


format_reasoning_reward = FormatReasoningReward.scores
