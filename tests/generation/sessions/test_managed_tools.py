from __future__ import annotations

import json
from typing import Any

import pytest

from atroposlib.errors import ConfigError
from atroposlib.generation.sessions.managed import ManagedServer
from tests.generation.template_families import Family, Sampler, tokenizer_of

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t['function']['name'] }}"
    "{% endfor %}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>"
    "{% if m['role'] == 'tool' %}user\n<tool_response>{{ m['content'] }}</tool_response>"
    "{% else %}{{ m['role'] }}\n{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FAMILY = Family("chatml with tools", TEMPLATE, "<|im_end|>")
CALL = '<tool_call>\n{"name":  "add", "arguments": {"a": 2}}\n</tool_call>'


@pytest.fixture
def tokenizer() -> Any:
    return tokenizer_of(FAMILY)


@pytest.fixture
def sampler() -> Sampler:
    return Sampler()


@pytest.fixture
def managed(sampler: Sampler, tokenizer: Any) -> ManagedServer:
    return ManagedServer(sampler, tokenizer, tool_parser="hermes")


async def ask(managed: Any, messages: list[Any], *texts: str, **kwargs: Any) -> Any:
    managed.server.next_outputs = [
        (managed.tokenizer.encode(text, add_special_tokens=False), "stop") for text in texts
    ]
    return await managed.chat_completion(
        messages=messages, n=len(texts), **{"tools": TOOLS, **kwargs}
    )


GO = {"role": "user", "content": "go"}


async def test_a_tool_call_is_parsed_in_the_message_and_raw_in_the_node(
    managed, sampler
) -> None:
    completion = await ask(managed, [GO], f"Hm. {CALL}<|im_end|>")
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Hm. "
    (call,) = choice.message.tool_calls
    assert isinstance(call, dict) and call["type"] == "function"
    assert call["function"] == {"name": "add", "arguments": '{"a": 2}'}
    (node,) = managed.nodes_for(completion)
    assert node.full_text.endswith(f"Hm. {CALL}<|im_end|>")
    assert node.metadata == {"finish_reason": "stop"}
    assert sampler.sent[0][0].startswith("<|im_start|>system\nadd<|im_end|>")
    dumped = json.loads(completion.model_dump_json())  # without a warning
    assert dumped["choices"][0]["message"]["tool_calls"] == [call]


@pytest.mark.parametrize("as_object", [True, False])
async def test_turns_with_tools_form_one_row_equal_to_the_rendered_prompt(
    managed, sampler, tokenizer, as_object: bool
) -> None:
    messages: list[Any] = [GO]
    for turn in range(3):
        completion = await ask(managed, messages, f"Hm {turn}. {CALL}\n{CALL}<|im_end|>")
        message = completion.choices[0].message
        messages.append(message if as_object else message.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": str(i)}
            for i, call in enumerate(message.tool_calls)
        ]
    last = await ask(managed, messages, "It is 4.<|im_end|>")
    assert last.choices[0].finish_reason == "stop"
    assert last.choices[0].message.content == "It is 4."
    (row,) = managed.get_state()["nodes"]
    samples = [token for sample in sampler.samples for token in sample.tokens]
    assert [token for token in row.masked_tokens if token != -100] == samples
    assert tokenizer.decode(row.tokens) == sampler.sent[-1][0] + "It is 4.<|im_end|>"


async def test_only_choices_with_a_tool_call_have_its_finish_reason(managed) -> None:
    completion = await ask(managed, [GO], f"{CALL}<|im_end|>", "<tool_call>{oops<|im_end|>")
    assert [c.finish_reason for c in completion.choices] == ["tool_calls", "stop"]
    assert completion.choices[0].message.content is None
    assert completion.choices[1].message.tool_calls is None
    assert completion.choices[1].message.content == "<tool_call>{oops"


@pytest.mark.parametrize(
    "choice", ["auto", "required", None, {"type": "function", "function": {"name": "add"}}]
)
async def test_every_tool_choice_except_none_parses_calls(managed, choice: Any) -> None:
    completion = await ask(managed, [GO], CALL, tool_choice=choice)
    assert completion.choices[0].finish_reason == "tool_calls"


async def test_choice_none_leaves_calls_text(managed) -> None:
    completion = await ask(managed, [GO], f"{CALL}<|im_end|>", tool_choice="none")
    assert completion.choices[0].message.content == CALL
    assert completion.choices[0].finish_reason == "stop"


async def test_without_a_parser_tools_are_left_out_with_a_warning(
    sampler, tokenizer, caplog
) -> None:
    managed = ManagedServer(sampler, tokenizer)
    completion = await ask(managed, [GO], f"{CALL}<|im_end|>")
    assert completion.choices[0].message.content == CALL
    assert sampler.sent[0][0] == "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    assert "no tool_parser" in caplog.text


def test_an_unknown_tool_parser_is_rejected_at_construction(sampler, tokenizer) -> None:
    with pytest.raises(ConfigError, match="tool_parser"):
        ManagedServer(sampler, tokenizer, tool_parser="nonsense")


async def test_content_may_be_none_or_text_parts(managed, sampler) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "three"},
    ]
    await ask(managed, messages, "four", tools=None)
    assert sampler.sent[0][0] == (
        "<|im_start|>user\none two<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_the_address_of_an_image_is_rejected_with_the_index_of_its_message(
    managed,
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://a.example/i.png"}}
    messages = [GO, {"role": "user", "content": [{"type": "text", "text": "see"}, picture]}]
    with pytest.raises(ConfigError, match=r"messages\[1\].content: .*never fetched"):
        await ask(managed, messages, "four")
    with pytest.raises(ConfigError, match="a message is a dict"):
        await ask(managed, ["go"], "four")
