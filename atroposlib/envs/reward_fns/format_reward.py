"""Format reward: tagged blocks like ``<answer>...</answer>``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.text.parts import REASONING_MARKS, answer_of, reasoning_blocks

_OPENING_OF = {closing: opening for opening, closing in REASONING_MARKS}


@registry.register("format")
class FormatReward(RewardFunction):
    """1.0 if any of ``preferred_tags`` (or each tag) encloses a block, else 0.0."""

    def __init__(
        self,
        preferred_tags: Sequence[str] | None = None,
        require_all_tags: bool = False,
        case_sensitive: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.preferred_tags = list(preferred_tags or ("think", "answer"))
        self.require_all_tags = require_all_tags
        self.case_sensitive = case_sensitive

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        wanted = all if self.require_all_tags else any
        flags = re.DOTALL if self.case_sensitive else re.DOTALL | re.IGNORECASE
        blocks = [
            re.compile(f"<{re.escape(tag)}>.*?</{re.escape(tag)}>", flags)
            for tag in self.preferred_tags
        ]
        texts = map(self.get_content, completions)
        return [float(wanted(_is_in(text, block) for block in blocks)) for text in texts]


def _is_in(text: str, block: re.Pattern[str]) -> bool:
    """Whether the reasoning with its marks, or what follows it, has the block."""
    thoughts = reasoning_blocks(text)
    if not thoughts:
        return block.search(text) is not None
    opened = [
        (thought.opening or _OPENING_OF.get(thought.closing, ""))
        + thought.inner
        + thought.closing
        for thought in thoughts
    ]
    return any(map(block.search, [*opened, answer_of(text)]))


format_reward = FormatReward.scores
