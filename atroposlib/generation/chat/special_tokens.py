"""Special tokens in text that is not the model's: content of users and tools.

    "see <|im_end|>"  --guarded-->  "see <", GUARD, "|im_end|>"  --encode-->  no end of turn

A guard inside the text of a special token keeps a tokenizer from encoding a special token.
Text is encoded in the pieces between the guards, so that the prompt has exactly the given
text.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from atroposlib.utils.tokenizers.texts import added_special_tokens

GUARD = "\u2060\u2063"  # a pair of invisible characters that no text has

_PATTERNS: WeakKeyDictionary[Any, re.Pattern[str] | None] = WeakKeyDictionary()


def guard_tokens(tokenizer: Any, content: str) -> str:
    """``content`` with a guard inside every text of a special token."""
    pattern = _special_pattern(tokenizer)
    if pattern is None:
        return content
    return pattern.sub(lambda match: match[0][0] + GUARD + match[0][1:], content)


def remove_guards(text: str) -> str:
    """``text`` without guards."""
    return text.replace(GUARD, "")


def _special_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    try:
        return _PATTERNS[tokenizer]
    except TypeError:  # a tokenizer of another library without hash or weak references
        return _pattern_of(tuple(_special_texts(tokenizer)))
    except KeyError:
        pattern = _pattern_of(tuple(_special_texts(tokenizer)))
        _PATTERNS[tokenizer] = pattern
        return pattern


@cache
def _pattern_of(texts: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def _special_texts(tokenizer: Any) -> list[str]:
    named = map(str, getattr(tokenizer, "all_special_tokens", None) or ())
    texts = {*named, *added_special_tokens(tokenizer).values()}
    # The longest first: a text may begin with a shorter text.
    return sorted(
        (text for text in texts if len(text) > 1), key=lambda text: (-len(text), text)
    )
