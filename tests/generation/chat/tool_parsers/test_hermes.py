"""The format of Hermes and Qwen."""

from __future__ import annotations

from atroposlib.generation.chat.tool_parsers.json_formats import HermesParser
from atroposlib.generation.chat.tool_parsers.parsing import FoundCall

ADD = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def test_text_before_the_first_tag_is_content_and_every_tag_is_a_call() -> None:
    parsed = HermesParser().parse(f"Hm. {ADD}\n{ADD}", [])
    assert parsed is not None
    assert parsed.content == "Hm. "
    assert parsed.calls == [FoundCall("add", '{"a": 1}')] * 2


def test_a_closing_tag_inside_an_argument_does_not_end_the_call() -> None:
    call = FoundCall("echo", '{"text": "</tool_call>"}')
    written = HermesParser().write([call])
    assert HermesParser().parse(written, []).calls == [call]


def test_text_after_the_json_of_a_call_makes_the_call_malformed() -> None:
    assert HermesParser().parse(ADD.replace("}}", "}} and more"), []) is None
    assert HermesParser().parse("no call", []) is None
