"""Calls of gpt-oss in its channels."""

from __future__ import annotations

import pytest

from atroposlib.generation.chat.tool_parsers.harmony import HarmonyParser
from atroposlib.generation.chat.tool_parsers.parsing import FoundCall

CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
THOUGHT = "<|channel|>analysis<|message|>Call functions.add?<|end|><|start|>assistant"


def test_a_message_to_a_function_is_a_call():
    parsed = HarmonyParser().parse(THOUGHT + CALL, [])
    assert parsed is not None
    assert (parsed.content, parsed.calls) == ("", [FoundCall("add", '{"a": 1}')])
    assert HarmonyParser().write(parsed.calls) == CALL


def test_the_recipient_may_stand_in_the_header():
    raw = "<|start|>assistant to=functions.add<|channel|>commentary<|message|>{}<|call|>"
    parsed = HarmonyParser().parse(raw, [])
    assert parsed is not None and parsed.calls == [FoundCall("add", "{}")]


@pytest.mark.parametrize(
    "raw",
    [
        THOUGHT,
        "<|channel|>final<|message|>add(1)<|return|>",
        CALL.replace("}", ""),
        CALL.replace("}", "} and more"),
        CALL.replace("1", "1e999"),
        CALL.replace("functions.add", "browser.search"),
        "",
    ],
)
def test_other_text_has_no_call(raw):
    assert HarmonyParser().parse(raw, []) is None
