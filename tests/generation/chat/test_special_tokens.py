"""Guards in the text of special tokens, and encoding without them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.generation.chat.special_tokens import GUARD, guard_tokens, remove_guards
from atroposlib.generation.chat.template import encode_prompt
from tests.generation.template_families import FAMILY_NAMED, SPECIALS, tokenizer_of

CHATML = FAMILY_NAMED["chatml"]
content = st.lists(st.sampled_from(["a", " é", "<", "|", "\n", *SPECIALS])).map("".join)


@pytest.mark.parametrize("kind", ["words", "bytes", "metaspace"])
@given(content)
def test_guarded_text_is_encoded_as_it_is_and_without_special_tokens(kind, text):
    tokenizer = tokenizer_of(CHATML, kind)
    marked = guard_tokens(tokenizer, text)
    assert remove_guards(marked) == text
    ids = encode_prompt(tokenizer, marked)
    assert tokenizer.decode(ids) == text
    assert not {*ids} & {*tokenizer.convert_tokens_to_ids(list(SPECIALS))}


def test_a_tokenizer_without_special_tokens_needs_no_guard():
    assert guard_tokens(object(), "<|im_end|>") == "<|im_end|>"
    assert GUARD in guard_tokens(tokenizer_of(CHATML), "see <|im_end|>")
