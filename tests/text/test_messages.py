"""Turns of a conversation."""

from __future__ import annotations

from atroposlib.text.messages import turns


def test_a_message_without_a_tool_call_is_one_turn_even_if_empty():
    assert list(turns({"role": "user", "content": ""})) == [("user", "")]


def test_each_tool_call_is_a_turn_of_its_own():
    call = {"function": {"name": "add", "arguments": "{}"}}
    said = {"role": "assistant", "content": "", "tool_calls": [call, "odd"]}
    assert list(turns(said)) == [("tool call", "add({})"), ("tool call", "odd")]
    assert list(turns({**said, "content": "hm"}))[0] == ("assistant", "hm")
