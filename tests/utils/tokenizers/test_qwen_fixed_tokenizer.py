"""The bundled Qwen template: turns render the same whether or not others follow."""

from __future__ import annotations

import copy
import json
import string

import pytest

from atroposlib.testing.tiny import char_tokenizer
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from atroposlib.utils.tokenizers.qwen_fixed_tokenizer import QwenFixedTokenizer

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CHAT = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": "<think>\nhm\n</think>\n\n",
        "tool_calls": [{"function": {"name": "f", "arguments": {"x": "it's <b>"}}}],
    },
    {"role": "tool", "content": "r1"},
    {"role": "tool", "content": [{"type": "text", "text": "r2"}]},
    {"role": "assistant", "content": "yo"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    char_tokenizer(alphabet=string.printable).save_pretrained(directory)
    return QwenFixedTokenizer(str(directory))


def test_a_chat_with_tools_renders_as_chatml(tokenizer):
    text = tokenizer.apply_chat_template(CHAT, tools=[TOOL], tokenize=False)
    system, user, called, results, answer, end = text.split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nbe brief\n\n")
    assert json.dumps(TOOL) in system.split("<tools>\n")[1].split("\n</tools>")[0]
    assert user == "<|im_start|>user\nhi"
    assert called.startswith("<|im_start|>assistant\n<think>\nhm\n</think>\n\n")
    body = called.split("<tool_call>\n")[1].split("\n</tool_call>")[0]
    assert json.loads(body) == {"name": "f", "arguments": {"x": "it's <b>"}}
    assert results == (
        "<|im_start|>user\n<tool_response>\nr1\n</tool_response>"
        "\n<tool_response>\nr2\n</tool_response>"
    )
    assert (answer, end) == ("<|im_start|>assistant\nyo", "")


def test_every_assistant_turn_can_be_trained_with_its_reasoning(tokenizer):
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nb\n</think>\n\nc"},
        {"role": "user", "content": "d"},
        {"role": "assistant", "content": "e"},
    ]
    result = tokenize_for_trainer(tokenizer, chat, train_on_all_assistant_turns=True)
    text = tokenizer.decode([label for label in result["masks"] if label != -100])
    assert text == "<think>\nb\n</think>\n\nc<|im_end|>\ne<|im_end|>\n"


def test_thinking_can_be_disabled_and_reasoning_given_separately(tokenizer):
    def prompt(chat, **options):
        return tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True, **options
        )

    user = [{"role": "user", "content": "a"}]
    assert prompt(user).endswith("<|im_start|>assistant\n")
    assert prompt(user, enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    apart = {"role": "assistant", "content": "c", "reasoning_content": "b"}
    assert "<think>\nb\n</think>\n\nc<|im_end|>" in prompt([*user, apart])


def test_other_attributes_are_those_of_the_wrapped_tokenizer(tokenizer):
    assert tokenizer.eos_token == "<|end|>"
    assert len(tokenizer) == len(tokenizer.tokenizer)
    assert tokenizer("ab")["input_ids"] == tokenizer.encode("ab")
    assert copy.copy(tokenizer).eos_token == "<|end|>"
    with pytest.raises(AttributeError):
        _ = tokenizer.no_such_thing
