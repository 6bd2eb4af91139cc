"""Calls between tags, and strict reading of their JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, strategies as st

from atroposlib.text.tool_calls import (
    MalformedCall,
    json_object,
    json_text,
    read_json_value,
    tagged_calls,
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("no call", []),
        ("<tool_call> is a tag", []),
        ("I need a <tool_call> block: <tool_call>{}</tool_call>", [({}, True)]),
        ('<tool_call>{"a": 1}</tool_call>', [({"a": 1}, True)]),
        ('<tool_call>\n{"a": 1}\n', [({"a": 1}, False)]),
        ('<tool_call>{"a": "</tool_call>"}</tool_call>', [({"a": "</tool_call>"}, True)]),
        ("<tool_call>x</tool_call>", [(None, True)]),
        ('<tool_call>{"a": </tool_call>', [(None, True)]),
        ('<tool_call>{"a": ', [(None, False)]),
        ('<tool_call>{"a": 1e400}</tool_call>', [(None, True)]),
        ("<tool_call>{}</tool_call><tool_call>x</tool_call>", [({}, True), (None, True)]),
    ],
)
def test_tagged_calls_of_a_table_of_texts(text, values):
    assert [(call.value, call.closed) for call in tagged_calls(text)] == values


arguments = st.dictionaries(
    st.text(max_size=5),
    st.text(max_size=20) | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    max_size=3,
)


@given(st.lists(arguments, max_size=3), st.text(alphabet="ab </>", max_size=10))
def test_what_is_written_between_tags_is_read_back(values, between):
    text = between.join(f"<tool_call>{json_text(value)}</tool_call>" for value in values)
    assert [call.value for call in tagged_calls(text)] == values


@pytest.mark.parametrize("number", ["1e400", "-1e999", "NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_no_json_are_malformed(number):
    with pytest.raises(MalformedCall):
        read_json_value(f'{{"a": [{number}]}}', 0)
    assert json_object(f'{{"a": {number}}}') is None


def test_large_whole_numbers_stay_exact():
    value = json_object('{"a": 123456789012345678901234567890, "b": 1.5e308}')
    assert value == {"a": 123456789012345678901234567890, "b": 1.5e308}
    assert value is not None and math.isfinite(value["b"])


def test_text_that_utf8_cannot_encode_is_escaped():
    assert json_text({"a": "é"}) == '{"a": "é"}'
    assert json.loads(json_text({"a": "\ud83d"}).encode()) == {"a": "\ud83d"}
