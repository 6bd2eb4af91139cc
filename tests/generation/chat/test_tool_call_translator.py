from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.tool_call_translator import (
    VLLM_AVAILABLE,
    ToolCallTranslator,
)
from atroposlib.generation.chat.tool_parsers import TOOL_PARSERS
from tests.generation.template_families import FAMILY_NAMED, tokenizer_of

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "note": {"type": "string"},
                "more": {"type": "object"},
            },
        },
    },
}
ONE_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture
def translator() -> ToolCallTranslator:
    return ToolCallTranslator(None)


def named(calls: Any) -> list[tuple[str, Any]]:
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def test_a_tool_call_is_parsed_with_the_text_before_it(translator) -> None:
    content, calls, reason = translator.parse_model_output(
        f"Let me add.\n{ONE_CALL}", "auto", [ADD]
    )
    assert (content, reason) == ("Let me add.\n", "tool_calls")
    (call,) = calls
    assert call["type"] == "function" and call["id"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert call.function.name == "add"  # as the openai package's objects are read
    assert json.loads(json.dumps(call)) == call


def test_several_tool_calls_keep_nested_arguments_and_get_separate_ids(translator) -> None:
    nested = {"name": "add", "arguments": {"more": {"deep": [1, {"x": None}]}, "note": "é"}}
    raw = f"{ONE_CALL}\n<tool_call>{json.dumps(nested)}</tool_call>"
    content, calls, _ = translator.parse_model_output(raw, "required", [ADD])
    assert content is None
    assert named(calls) == [("add", {"a": 1}), ("add", nested["arguments"])]
    assert len({call["id"] for call in calls}) == 2


def test_an_unclosed_last_tag_is_still_parsed(translator) -> None:
    _, calls, reason = translator.parse_model_output(
        ONE_CALL.removesuffix("</tool_call>"), "auto", [ADD]
    )
    assert named(calls) == [("add", {"a": 1})] and reason == "tool_calls"


@pytest.mark.parametrize(
    "raw",
    [
        "no call here",
        "<tool_call>{'name': 'add'}</tool_call>",
        '<tool_call>{"name": "add", "arguments": {"a": 1}',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        f"{ONE_CALL}<tool_call>oops</tool_call>",
        '<tool_call>{"name": "add"} and more</tool_call>',
        "<tool_call>" + "[" * 100_000,
    ],
)
def test_a_malformed_tool_call_stays_text(translator, raw: str) -> None:
    assert translator.parse_model_output(raw, "auto", [ADD]) == (raw, None, "stop")


@pytest.mark.parametrize(("choice", "tools"), [("none", [ADD]), ("auto", None), ("auto", [])])
def test_tool_calls_are_not_parsed_without_tools_or_with_tool_choice_none(
    translator, choice: str, tools: Any
) -> None:
    assert translator.parse_model_output(ONE_CALL, choice, tools) == (ONE_CALL, None, "stop")


def test_string_and_missing_arguments_become_an_object(translator) -> None:
    raw = (
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 2}"}</tool_call>'
        '<tool_call>{"name": "stop"}</tool_call>'
    )
    _, calls, _ = translator.parse_model_output(raw, "auto", [ADD])
    assert named(calls) == [("add", {"a": 2}), ("stop", {})]


def test_sampled_tool_calls_are_rendered_back_exactly(translator) -> None:
    raw = f"Hm. {ONE_CALL}   <tool_call>{{'broken"  # only the well-formed text comes back
    assert translator.parse_model_output(raw, "auto", [ADD])[1] is None
    raw = f"Hm.  {ONE_CALL}\n trailing words"
    _, calls, _ = translator.parse_model_output(raw, "auto", [ADD])
    assert translator.reconstruct_raw_text_from_tool_calls(calls) == raw
    copied = json.loads(json.dumps(calls))  # as an agent sends them back
    message = {"role": "assistant", "content": "Hm.  ", "tool_calls": copied, "name": "a"}
    assert translator.convert_messages_for_template([message]) == [
        {"role": "assistant", "content": raw, "name": "a"}
    ]


def test_tool_calls_of_another_origin_are_rendered_in_the_format_of_the_model(
    translator,
) -> None:
    calls = [
        {"id": "x", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "y", "function": {"name": "stop", "arguments": ""}},
    ]
    written = (
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n'
        '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    )
    assert translator.reconstruct_raw_text_from_tool_calls(calls) == written
    assert translator.reconstruct_raw_text_from_tool_calls([]) == ""
    converted = translator.convert_messages_for_template(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "I will.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "x", "content": "3"},
        ]
    )
    assert [m["content"] for m in converted] == ["go", f"I will.\n{written}", "3"]
    assert converted[2]["tool_call_id"] == "x" and "tool_calls" not in converted[1]


def test_special_tokens_are_kept_with_tools_but_the_end_of_turn_is_removed() -> None:
    tokenizer = tokenizer_of(FAMILY_NAMED["chatml"])
    translator = ToolCallTranslator(tokenizer)
    ids = tokenizer.encode("a<|tool|>b<|im_end|>", add_special_tokens=False)
    assert translator.decode_with_tool_awareness(ids) == "ab"
    assert translator.decode_with_tool_awareness(ids, has_tools=True) == "a<|tool|>b"


def test_an_unknown_parser_is_rejected_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match="hermes, llama3_json, mistral"):
        ToolCallTranslator(None, "no_such_parser")
    assert isinstance(VLLM_AVAILABLE, bool)


@pytest.mark.parametrize(
    ("parser", "raw", "content", "found"),
    [
        ("llama3_json", '{"name": "add", "parameters": {"a": 1}}', None, [("add", {"a": 1})]),
        (
            "llama3_json",
            'Hm.<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
            "Hm.",
            [("f", {}), ("g", {})],
        ),
        ("llama3_json", 'I say {"name": "add", "parameters": {}}', "", None),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', None, [("f", {})]),
        (
            "mistral",
            'Hm.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}',
            "Hm.",
            [("f", {"a": 1}), ("g", {})],
        ),
        ("mistral", "[TOOL_CALLS]f{", "", None),
        ("mistral", "[TOOL_CALLS] [1", "", None),
        (
            "qwen3_coder",
            "Hm.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
            "<parameter=note>\n12\n</parameter>\n</function>\n</tool_call>",
            "Hm.\n",
            [("add", {"a": 1, "note": "12"})],
        ),
        ("qwen3_coder", "<function=add>\n<parameter=a>\nx\n", "", None),
        (
            "qwen3_coder",
            "<function=add>\n<parameter=a>\n1\n</parameter>",
            None,
            [("add", {"a": 1})],
        ),
        ("qwen3_coder", "I would write <function=add> here", "", None),
        ("llama3_json", '{"name": "Alice", "age": 3}', "", None),
        ("llama3_json", '{"name": "add", "age": 3}', "", None),
        ("llama3_json", '{"name": "Alice", "parameters": {"age": 3}}', "", None),
        (
            "harmony",
            "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>commentary "
            'to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>',
            None,
            [("add", {"a": 1})],
        ),
    ],
)
def test_tool_calls_of_other_formats_are_parsed(
    parser: str, raw: str, content: str, found: Any
) -> None:
    text, calls, _ = ToolCallTranslator(None, parser).parse_model_output(raw, "auto", [ADD])
    if found is None:
        assert (text, calls) == (raw, None)
    else:
        assert (text, named(calls)) == (content, found)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # closing tags and half surrogates included
    | st.text(st.characters())
    | st.sampled_from(["</tool_call>", "<tool_call>", " <think>", " </think>", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.text("abc_.-", min_size=1)
called = st.lists(
    st.tuples(names, st.dictionaries(st.text(), json_values, max_size=3)),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("parser", ["harmony", "hermes", "llama3_json", "mistral"])
@given(called=called)
def test_rendered_tool_calls_parse_to_the_same_calls(parser: str, called: Any) -> None:
    translator = ToolCallTranslator(None, parser)
    calls = [
        {"id": str(i), "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(called)
    ]
    raw = translator.reconstruct_raw_text_from_tool_calls(calls)
    raw.encode()  # fit for the wire
    tools = [ADD, *({"function": {"name": name}} for name, _ in called)]
    content, parsed, _ = translator.parse_model_output(raw, "auto", tools)
    assert content is None and named(parsed) == called
    assert translator.reconstruct_raw_text_from_tool_calls(parsed) == raw


@given(
    note=st.text("ab\n </>=", max_size=8).filter(lambda text: text == text.strip("\n")),
    a=st.integers(),
)
def test_coder_tool_calls_are_parsed_with_the_types_of_their_schema(note: str, a: int) -> None:
    translator = ToolCallTranslator(None, "qwen3_coder")
    arguments = {"a": a, "note": note, "more": {"deep": [1, None]}}
    raw = translator.reconstruct_raw_text_from_tool_calls(
        [{"id": "0", "function": {"name": "add", "arguments": json.dumps(arguments)}}]
    )
    assert named(translator.parse_model_output(raw, "auto", [ADD])[1]) == [("add", arguments)]


THOUGHTS = [
    "I could <tool_call> here.",
    ONE_CALL.replace("1", "7"),
    "<function=add>\n<parameter=a>\n7\n</parameter>\n</function>",
    '[TOOL_CALLS]add{"a": 7}',
    '{"name": "add", "parameters": {"a": 7}}',
    "A tag <function=add> and </function>.",
]
CALLS = {
    "hermes": ONE_CALL,
    "llama3_json": '{"name": "add", "parameters": {"a": 1}}',
    "mistral": '[TOOL_CALLS]add{"a": 1}',
    "qwen3_coder": "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>",
}


@pytest.mark.parametrize("parser", sorted(CALLS))
@pytest.mark.parametrize("thought", THOUGHTS)
@pytest.mark.parametrize("opening", ["<think>\n", ""])
def test_calls_are_read_after_the_reasoning_only(parser, thought, opening) -> None:
    translator = ToolCallTranslator(None, parser)
    head = f"{opening}{thought}\n</think>\n\n"
    content, calls, _ = translator.parse_model_output(head + CALLS[parser], "auto", [ADD])
    assert (content.rstrip(), named(calls)) == (head.rstrip(), [("add", {"a": 1})])
    for raw in (f"{head}It is 4.", f"<think>{thought}", f"<think>{thought}{CALLS[parser]}"):
        assert translator.parse_model_output(raw, "auto", [ADD]) == (raw, None, "stop")


@given(parser=st.sampled_from(sorted(TOOL_PARSERS)), raw=st.text())
def test_any_text_is_parsed_without_an_error(parser: str, raw: str) -> None:
    for prefix in ("", "<tool_call>", "[TOOL_CALLS]", "{", "<function=f>"):
        ToolCallTranslator(None, parser).parse_model_output(prefix + raw, "auto", [ADD])
