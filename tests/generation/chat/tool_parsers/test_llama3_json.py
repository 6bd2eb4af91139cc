"""The JSON format of Llama 3."""

from __future__ import annotations

from atroposlib.generation.chat.tool_parsers.json_formats import Llama3JsonParser
from atroposlib.generation.chat.tool_parsers.parsing import FoundCall


def test_calls_are_separated_by_semicolons() -> None:
    raw = '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}'
    parsed = Llama3JsonParser().parse(raw, [])
    assert parsed is not None and parsed.content == ""
    assert parsed.calls == [FoundCall("f", '{"a": 1}'), FoundCall("g", "{}")]
    assert Llama3JsonParser().write(parsed.calls) == raw


def test_content_ends_at_the_python_tag() -> None:
    parsed = Llama3JsonParser().parse('Hm.<|python_tag|>{"name": "f"}', [])
    assert parsed is not None
    assert (parsed.content, parsed.calls) == ("Hm.", [FoundCall("f", "{}")])


def test_text_around_the_json_prevents_a_tool_call() -> None:
    assert Llama3JsonParser().parse('Use {"name": "f"}', []) is None
    assert Llama3JsonParser().parse('{"name": "f"} now', []) is None
    assert Llama3JsonParser().parse("", []) is None
