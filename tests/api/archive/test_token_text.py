"""Text of tokens from local files."""

from __future__ import annotations

import pytest

from atroposlib.api.archive.token_text import local_tokenizer, pieces, text_of


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, token_ids, *, skip_special_tokens):
        return bytes(token_ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["plain", "é ü 汉字 👩‍👩‍👧 end", "x" * 200 + "字" * 70, ""])
def test_pieces_join_to_the_text_and_split_no_character(text):
    ids = list(text.encode())
    shown = pieces(Bytes(), ids)
    assert (len(shown), "".join(shown)) == (len(ids), text)


def test_a_character_stands_at_its_last_token():
    assert pieces(Bytes(), list("a字".encode())) == ["a", "", "", "字"]


def test_a_span_begins_with_what_stands_before_it():
    ids = list("ab字".encode())
    assert pieces(Bytes(), ids[3:], before=ids[:3]) == ["", "字"]


def test_bytes_that_are_no_character_are_shown_as_such():
    assert "".join(pieces(Bytes(), [0x80] * 40 + [65])) == "\ufffd" * 40 + "A"


def test_no_tokenizer_is_looked_for_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert local_tokenizer("nobody/no-such-tokenizer") is None
    assert local_tokenizer(str(tmp_path)) is None


def test_the_tokenizer_of_a_directory_gives_pieces_of_its_text(tmp_path):
    from atroposlib.testing.tiny import write_char_tokenizer

    write_char_tokenizer(tmp_path)
    decoder = local_tokenizer(str(tmp_path))
    ids = list(range(5, 30))
    assert "".join(pieces(decoder, ids)) == text_of(decoder, ids)
