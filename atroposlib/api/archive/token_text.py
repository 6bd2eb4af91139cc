"""Text of tokens, by a tokenizer from local files. Nothing is ever downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from atroposlib.errors import ConfigError
from atroposlib.utils.tokenizers.loading import load_tokenizer_named, local_model

BEFORE = 16  # tokens before the first, for the space at the beginning of words
WINDOW = 48  # tokens decoded at a time
MAX_HELD = 16  # tokens that wait for the rest of a character
REPLACEMENT = "\ufffd"  # what a decoder writes for an incomplete character


class Decoder(Protocol):
    """Part of a tokenizer of transformers, or of one without it."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> Any: ...


@lru_cache(maxsize=4)
def local_tokenizer(name: str) -> Decoder | None:
    """The tokenizer of a directory, or of a name in the local cache; None if it is not here."""
    directory = Path(local_model(name))
    try:
        if not directory.is_dir():
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(name, "tokenizer.json")
            if not isinstance(found, str):
                return None
            directory = Path(found).parent
        loaded: Decoder = load_tokenizer_named(str(directory))
        return loaded
    except (ConfigError, ImportError, OSError, ValueError, KeyError):
        return None


def text_of(decoder: Decoder, ids: Sequence[int]) -> str:
    """The text of tokens, special tokens included."""
    return str(decoder.decode(list(ids), skip_special_tokens=False)) if len(ids) else ""


def pieces(decoder: Decoder, ids: Sequence[int], before: Sequence[int] = ()) -> list[str]:
    """The text of each token: what it adds to the text of those before it.

    Tokens decoded one by one break characters that span several. So texts of growing prefixes
    are compared, and a character stands at its last token; those before it are empty.
    """
    window = list(before[-BEFORE:])
    text = text_of(decoder, window).rstrip(REPLACEMENT)
    shown: list[str] = []
    held = 0  # tokens of an incomplete character
    for i, one in enumerate(ids):
        window.append(one)
        longer = text_of(decoder, window)
        if longer.endswith(REPLACEMENT) and held < MAX_HELD and i < len(ids) - 1:
            shown.append("")
            held += 1
            continue
        shown.append(longer[len(text) :])
        text, held = longer, 0
        if len(window) > WINDOW:
            window = window[-BEFORE:]
            text = text_of(decoder, window)
    return shown
