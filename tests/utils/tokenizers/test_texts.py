"""Texts of tokens, with characters that span several of them."""

from __future__ import annotations

import pytest

from atroposlib.utils.tokenizers.texts import token_texts
from tests.cli.view_run.toys import TOKENIZER


@pytest.mark.parametrize("text", ["", "plain", "é你🙂!", "🙂"])
def test_the_texts_of_tokens_join_to_the_text(text):
    texts = token_texts(TOKENIZER, TOKENIZER(text))
    assert "".join(texts) == text
    assert len(texts) == len(text.encode())


def test_bytes_that_never_become_a_character_are_shown_all_the_same():
    texts = token_texts(TOKENIZER, [0xFF] * 9 + [0x61])
    assert "".join(texts) == "\N{REPLACEMENT CHARACTER}" * 9 + "a"
