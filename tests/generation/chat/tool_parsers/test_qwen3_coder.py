"""The XML format of Qwen3-Coder."""

from __future__ import annotations

import json

from atroposlib.generation.chat.tool_parsers.parsing import FoundCall
from atroposlib.generation.chat.tool_parsers.qwen3_coder import Qwen3CoderParser

PROPERTIES = {"count": {"type": "integer"}, "note": {"type": "string"}}
TOOLS = [{"function": {"name": "f", "parameters": {"properties": PROPERTIES}}}]
RAW = (
    "Hm.<tool_call>\n<function=f>\n<parameter=count>\n3\n</parameter>\n"
    "<parameter=note>\n4\n</parameter>\n</function>\n</tool_call>"
)


def test_parameter_values_are_converted_to_the_types_of_the_schema() -> None:
    parsed = Qwen3CoderParser().parse(RAW, TOOLS)
    assert parsed is not None and parsed.content == "Hm."
    assert json.loads(parsed.calls[0].arguments) == {"count": 3, "note": "4"}


def test_parameter_values_without_a_schema_stay_text() -> None:
    parsed = Qwen3CoderParser().parse(RAW, [])
    assert parsed is not None
    assert json.loads(parsed.calls[0].arguments) == {"count": "3", "note": "4"}


def test_a_rendered_tool_call_is_parsed_back() -> None:
    call = FoundCall("f", '{"count": 3, "note": "two\\nlines"}')
    parsed = Qwen3CoderParser().parse(Qwen3CoderParser().write([call]), TOOLS)
    assert parsed is not None and parsed.calls == [call]
    assert Qwen3CoderParser().parse("no call", TOOLS) is None
