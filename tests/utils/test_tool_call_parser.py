"""Parsing of valid and invalid tool calls."""

from __future__ import annotations

import pytest

from atroposlib.utils.tool_call_parser import extract_tool_call, parse_tool_call

WRONG = ("-ERROR-", {}, True)


def call(body: str, tag: str = "tool_call") -> str:
    return f"I will. <{tag}>\n{body}\n</{tag}> done"


@pytest.mark.parametrize(
    ("text", "tags", "found"),
    [
        (call("x"), None, "x"),
        (call("x") + call("y"), None, "x"),
        (call("x", "a") + call("y", "b"), ["b", "a"], "y"),
        (call("x", "a"), ["b", "a"], "x"),
        (call("x", "a"), None, None),
        ("<tool_call> x", None, None),
        ("<tool_call></tool_call>", None, ""),
        (call("x", "a.b"), ["axb"], None),
        ("", None, None),
    ],
)
def test_the_first_of_the_preferred_tags_is_parsed(text, tags, found):
    assert extract_tool_call(text, tags) == found


@pytest.mark.parametrize(
    ("body", "parsed"),
    [
        ('{"name": "f", "arguments": {"x": 1}}', ("f", {"x": 1}, False)),
        ('{"name": "f", "arguments": {"x": "it\'s"}}', ("f", {"x": "it's"}, False)),
        ('{"name": "f"}', ("f", {}, False)),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', ("f", {"x": 1}, False)),
        ('{"name": "f", "arguments": [1]}', WRONG),
        ('{"name": "f", "arguments": "no"}', WRONG),
        ('{"name": 3, "arguments": {}}', WRONG),
        ('{"arguments": {}}', WRONG),
        ("{'name': 'f'}", ("f", {}, False)),
        ("{'name': 'f', 'arguments': {'x': 1}}", ("f", {"x": 1}, False)),
        ("{'name': 'f', 'arguments': {'x': \"it's\"}}", WRONG),
        ("{'name': f}", WRONG),
        ('["f"]', WRONG),
        ("[" * 100_000, WRONG),
        ("", WRONG),
    ],
)
def test_a_tool_call_is_json_or_a_dict_in_single_quotes(body, parsed):
    assert parse_tool_call(call(body)) == parsed


def test_a_missing_tool_call_is_wrong():
    assert parse_tool_call("no call") == WRONG


@pytest.mark.parametrize(
    "tool", [{"name": "f"}, {"type": "function", "function": {"name": "f"}}]
)
def test_a_call_of_an_unknown_tool_is_wrong_but_keeps_its_arguments(tool):
    known = call('{"name": "f", "arguments": {"x": 1}}')
    other = call('{"name": "g", "arguments": {"x": 1}}', "t")
    assert parse_tool_call(known, [tool]) == ("f", {"x": 1}, False)
    assert parse_tool_call(other, [tool], ["t"]) == ("-ERROR-", {"x": 1}, True)
