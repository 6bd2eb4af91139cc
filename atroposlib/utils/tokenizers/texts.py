"""Texts of tokens: of a sequence, and of each token in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for an incomplete character
# A character of several tokens may straddle a boundary; no tokenizer needs more tokens for it.
MAX_TOKENS_PER_CHARACTER = 8


def exact_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of tokens, with special tokens."""
    return str(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


def exact_texts(tokenizer: Any, sequences: Sequence[Sequence[int]]) -> list[str]:
    """The text of each sequence; the tokenizers library decodes them on all cores."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decode_all = getattr(backend, "decode_batch", None)
    if decode_all is None:
        return [exact_text(tokenizer, tokens) for tokens in sequences]
    ids = [list(tokens) for tokens in sequences]
    return list(map(str, decode_all(ids, skip_special_tokens=False)))


def added_special_tokens(tokenizer: Any) -> dict[int, str]:
    """Texts of added special tokens by their id; empty for a tokenizer that lists none.

    ``all_special_tokens`` lacks tokens without a role, e.g. the marks of turns.
    """
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if not isinstance(added, Mapping):
        return {}
    return {i: str(token) for i, token in added.items() if getattr(token, "special", False)}


def token_texts(
    tokenizer: Any, tokens: Sequence[int], before: Sequence[int] = ()
) -> list[str]:
    """The text that each token adds to ``before``, the tokens in front of it.

    A character of several tokens stands at its last token. Tokens are decoded with the tokens of
    the character before, which keeps their spaces.
    """
    all_tokens = [*before[-MAX_TOKENS_PER_CHARACTER:], *tokens]
    context, done = 0, len(all_tokens) - len(tokens)
    known = len(exact_text(tokenizer, all_tokens[:done]).rstrip(REPLACEMENT)) if done else 0
    texts: list[str] = []
    for end in range(done + 1, len(all_tokens) + 1):
        now = exact_text(tokenizer, all_tokens[context:end])
        held = end - done < MAX_TOKENS_PER_CHARACTER and end < len(all_tokens)
        if now.endswith(REPLACEMENT) and held:
            texts.append("")
            continue
        texts.append(now[known:])
        context, done = done, end
        known = len(exact_text(tokenizer, all_tokens[context:done]))
    return texts
