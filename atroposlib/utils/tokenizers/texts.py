"""Texts of tokens: of a sequence, and of each token in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# A character of several tokens may straddle a boundary; no tokenizer needs more of them.
MAX_TOKENS_PER_CHARACTER = 8


def text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    return str(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


def token_texts(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The text that each token adds; a character of several tokens stands at its last one."""
    texts, context, done = [], 0, 0  # decoded with the text before, which keeps its spaces
    for end in range(1, len(tokens) + 1):
        now = text_of(tokenizer, tokens[context:end])
        if now.endswith("\N{REPLACEMENT CHARACTER}") and end - done < MAX_TOKENS_PER_CHARACTER:
            texts.append("")
            continue
        texts.append(now[len(text_of(tokenizer, tokens[context:done])) :])
        context, done = done, end
    return texts
