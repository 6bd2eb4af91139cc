"""Rendered chats: places of the assistant's texts, continued messages, nulls."""

from __future__ import annotations

import pytest

from atroposlib.utils.tokenizers.chats import ChatTemplates, with_reasoning, without_marks

TEMPLATE = "{% for m in messages %}[{% generation %}{{ m.content | trim }}{% endgeneration %}]{% endfor %}"
CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]


def test_the_places_of_marked_texts_are_returned_without_marks():
    text, spans = ChatTemplates().render(TEMPLATE, CHAT, {}, marked=True)
    assert (text, spans) == ("[a][bc]", [(1, 2), (4, 6)])
    assert ChatTemplates().render(TEMPLATE, CHAT, {}) == ("[a][bc]", [])
    assert without_marks("ab") == ("ab", [])


def test_a_continued_message_ends_the_text():
    text, _ = ChatTemplates().render(TEMPLATE, CHAT, {}, continue_final_message=True)
    assert text == "[a][bc"
    with pytest.raises(ValueError, match="drops the last message"):
        ChatTemplates().render("[]", CHAT, {}, continue_final_message=True)


def test_nulls_are_left_out_and_reasoning_has_every_name():
    assert with_reasoning({"role": "a", "content": None, "reasoning": "r"}) == {
        **{"role": "a", "reasoning": "r"},
        **{"thinking": "r", "reasoning_content": "r"},
    }
