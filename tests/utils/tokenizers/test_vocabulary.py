"""Ids of the same tokens in two vocabularies; a teacher that lacks tokens is refused."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import ALPHABET, char_tokenizer
from atroposlib.utils.tokenizers.vocabulary import vocabulary_map


class Words:
    def __init__(self, *words):
        self.words = words

    def get_vocab(self):
        return {word: i for i, word in enumerate(self.words)}


NAMES = ("small", "big")


def test_ids_are_translated_by_the_text_of_their_token():
    found = vocabulary_map(Words("a", "b"), Words("b", "a", "<pad>"), NAMES)
    assert found.ids_for_teacher([0, 1, 1]) == [1, 0, 0]
    assert found.to_student == {1: 0, 0: 1} and not found.has_equal_ids


def test_a_teacher_with_further_tokens_has_equal_ids():
    assert vocabulary_map(Words("a", "b"), Words("a", "b", "c"), NAMES).has_equal_ids
    ours = char_tokenizer()
    assert vocabulary_map(ours, char_tokenizer(ALPHABET), NAMES).has_equal_ids


def test_a_teacher_that_lacks_tokens_is_refused_by_name_with_a_remedy():
    with pytest.raises(
        ConfigError, match="big lacks 2 of the 3 tokens of small, such as 'a', 'c'"
    ):
        vocabulary_map(Words("a", "b", "c"), Words("b", "x"), NAMES)
