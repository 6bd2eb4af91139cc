"""Prompt text and token ids of chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.template import (
    content_text,
    decode_after,
    encode_after,
    encode_prompt,
    load_tokenizer,
    render,
    template_messages,
)
from atroposlib.generation.configs import APIServerConfig

TURNS = [{"role": "user", "content": "hi"}]


class WithoutTemplate:
    """Characters as ids, and no template. It drops a leading space, as some tokenizers do."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids)).removeprefix(" ")


def test_messages_without_a_chat_template_are_rendered_one_per_line() -> None:
    assert render(WithoutTemplate(), TURNS) == "user: hi\nassistant:"
    answered = [*TURNS, {"role": "assistant", "content": "yes"}]
    assert render(WithoutTemplate(), answered) == "user: hi\nassistant: yes"


def test_the_generation_prompt_is_added_only_after_a_user_turn(
    tokenizer: Any,
) -> None:
    assert render(tokenizer, TURNS) == "<|user|>hi<|end|><|assistant|>"
    answered = [*TURNS, {"role": "assistant", "content": "yes"}]
    assert render(tokenizer, answered) == "<|user|>hi<|end|><|assistant|>yes"  # continued
    asked = {"add_generation_prompt": True}
    ended = "<|user|>hi<|end|><|assistant|>yes<|end|>"
    assert render(tokenizer, answered, template_kwargs=asked) == ended + "<|assistant|>"
    closed = {"continue_final_message": False}
    assert render(tokenizer, answered, template_kwargs=closed) == ended


def test_text_in_the_middle_of_a_sequence_is_encoded_without_its_context(
    tokenizer: Any,
) -> None:
    before = encode_prompt(tokenizer, "<|user|>h")
    assert before + encode_after(tokenizer, before, "i") == encode_prompt(
        tokenizer, "<|user|>hi"
    )
    assert encode_after(tokenizer, before, "") == []


def test_a_leading_space_of_a_sample_is_kept() -> None:
    before, sampled = [ord("a")], [ord(" "), ord("b")]
    text = decode_after(WithoutTemplate(), before, sampled, skip_special=True)
    assert text == " b"
    assert decode_after(WithoutTemplate(), [], sampled, skip_special=True) == "b"


def test_content_parts_are_joined_into_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]
    assert content_text(parts) == "abc"
    assert content_text(None) == ""
    shown = template_messages([{"role": "assistant", "content": None}])
    assert shown == [{"role": "assistant", "content": ""}]
    with pytest.raises(ConfigError, match=r"messages\[0\].content.*'image_url'"):
        template_messages([{"role": "user", "content": [{"type": "image_url"}]}])


def test_a_missing_tokenizer_is_reported_with_its_name(tmp_path) -> None:
    config = APIServerConfig(model_name="other", tokenizer_name=str(tmp_path))
    with pytest.raises(ConfigError, match=f"no tokenizer can be loaded from .*{tmp_path}"):
        load_tokenizer(config)
