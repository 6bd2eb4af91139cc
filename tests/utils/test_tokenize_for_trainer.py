"""Masks from a chat template, and a clear error where the template allows none."""

from __future__ import annotations

import pytest

from atroposlib.testing.tiny import char_tokenizer
from atroposlib.utils.tokenize_for_trainer import (
    UNMASKED_ROLES,
    TemplateNotPrefixStable,
    tokenize_for_trainer,
)

CHAT = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "2?"},
    {"role": "assistant", "content": "4"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return char_tokenizer()


def trained(tokenizer, result):
    return tokenizer.decode([label for label in result["masks"] if label != -100])


def test_the_last_message_is_trained_with_its_end_token(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT)
    assert isinstance(result["tokens"], list) and isinstance(result["tokens"][0], int)
    assert len(result["tokens"]) == len(result["masks"])
    assert tokenizer.decode(result["tokens"]) == (
        "<|user|>hi<|end|><|assistant|>yo<|end|><|user|>2?<|end|><|assistant|>4<|end|>"
    )
    assert trained(tokenizer, result) == "4<|end|>"
    assert "messages" not in result


def test_all_assistant_turns_can_be_trained(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT, True, train_on_all_assistant_turns=True)
    assert trained(tokenizer, result) == "yo<|end|>4<|end|>"
    assert result["messages"] == CHAT
    assert UNMASKED_ROLES == ("assistant", "agent")


def test_an_end_token_that_the_model_never_wrote_is_cut(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT, finish_reason="length")
    assert trained(tokenizer, result) == "4"
    assert len(result["tokens"]) == len(result["masks"])


def test_an_end_token_is_cut_even_when_white_space_follows_it(tokenizer):
    class Newlines:
        eos_token_id = tokenizer.eos_token_id
        decode = staticmethod(tokenizer.decode)

        def apply_chat_template(self, messages, **kwargs):
            ids = tokenizer.apply_chat_template(messages, **kwargs)
            ends = kwargs.get("add_generation_prompt")
            return ids if ends else [*ids, *tokenizer.encode("\n")]

    result = tokenize_for_trainer(Newlines(), CHAT[:2], finish_reason="length")
    assert trained(tokenizer, result) == "yo"


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer):
    class DropsThinking:
        eos_token_id = tokenizer.eos_token_id

        def apply_chat_template(self, messages, **kwargs):
            last = len(messages) - 1
            return tokenizer.apply_chat_template(
                [
                    {**m, "content": m["content"].upper() if i == last else m["content"]}
                    for i, m in enumerate(messages)
                ],
                **kwargs,
            )

    with pytest.raises(TemplateNotPrefixStable, match="first 1 messages"):
        tokenize_for_trainer(DropsThinking(), CHAT[:2])
