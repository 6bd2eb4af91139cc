"""The hook of an environment: what it may return, and which arguments it takes."""

from __future__ import annotations

import pytest

from atroposlib.envs.teaching.hint import call_hint, hint_ids, teacher_hook
from atroposlib.testing.tiny import char_tokenizer

TOKENIZER = char_tokenizer()


class Hinting:
    def teacher_prompt(self, item):
        return f"hint {item}"


class Author:
    teacher_prompt = "a text of the author's own"


def test_a_name_that_is_no_method_is_the_authors():
    assert teacher_hook(Author()) is None and teacher_hook(object()) is None
    assert teacher_hook(Hinting())("x") == "hint x"


async def test_a_hook_takes_the_item_or_the_item_and_the_prompt():
    async def later(item, prompt):
        return [*prompt, 7]

    assert await call_hint(Hinting().teacher_prompt, "x", [1]) == "hint x"
    assert await call_hint(later, "x", [1, 2]) == [1, 2, 7]


def test_messages_text_and_ids_become_ids():
    messages = [{"role": "user", "content": "4 is it"}]
    expected = TOKENIZER.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    assert TOKENIZER.decode(hint_ids(messages, TOKENIZER)) == expected
    assert hint_ids("4 is it", TOKENIZER) == hint_ids(messages, TOKENIZER)
    assert hint_ids([5, 6], TOKENIZER) == [5, 6] and hint_ids(None, TOKENIZER) is None


@pytest.mark.parametrize("value", [4, [], [1, "a"], {"role": "user"}])
def test_what_is_no_prompt_is_refused(value):
    with pytest.raises(TypeError, match="return messages, a text, token ids, or None"):
        hint_ids(value, TOKENIZER)
