"""Texts of tokens, with characters that span several of them."""

from __future__ import annotations

import pytest

from atroposlib.testing.tiny import write_char_tokenizer
from atroposlib.utils.tokenizers.loading import local_tokenizer
from atroposlib.utils.tokenizers.texts import exact_text, token_texts
from tests.cli.view_run.toys import TOKENIZER

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "text", ["", "plain", "é你🙂!", "🙂", "👩‍👩‍👧 end", "x" * 200 + "字" * 70]
)
def test_the_texts_of_tokens_join_to_the_text(text):
    texts = token_texts(TOKENIZER, TOKENIZER(text))
    assert "".join(texts) == text
    assert len(texts) == len(text.encode())


def test_a_character_stands_at_its_last_token():
    assert token_texts(TOKENIZER, TOKENIZER("a字")) == ["a", "", "", "字"]


def test_a_span_begins_with_what_stands_before_it():
    tokens = TOKENIZER("ab字")
    assert token_texts(TOKENIZER, tokens[3:], before=tokens[:3]) == ["", "字"]


@pytest.mark.parametrize("count", [1, 9, 40])
def test_bytes_that_never_become_a_character_are_shown_all_the_same(count):
    texts = token_texts(TOKENIZER, [0xFF] * count + [0x61])
    assert "".join(texts) == REPLACEMENT * count + "a"
    assert token_texts(TOKENIZER, [0x61, 0xE5])[-1] == REPLACEMENT


def test_a_tokenizer_without_transformers_gives_texts_too(tmp_path, monkeypatch):
    write_char_tokenizer(tmp_path)
    monkeypatch.setattr("atroposlib.utils.tokenizers.loading.find_spec", lambda name: None)
    tokenizer = local_tokenizer(str(tmp_path))
    assert type(tokenizer).__name__ == "PlainTokenizer"
    tokens = list(range(5, 30))
    assert "".join(token_texts(tokenizer, tokens)) == exact_text(tokenizer, tokens)


def test_no_tokenizer_is_looked_for_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert local_tokenizer("nobody/no-such-tokenizer") is None
    assert local_tokenizer(str(tmp_path)) is None
