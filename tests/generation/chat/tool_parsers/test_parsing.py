"""JSON of tool calls."""

from __future__ import annotations

import pytest

from atroposlib.generation.chat.tool_parsers.parsing import (
    FoundCall,
    MalformedCall,
    arguments_value,
    call_of,
    json_text,
    read_json_value,
)


def test_a_json_value_is_parsed_from_its_offset_to_its_end() -> None:
    assert read_json_value('ab  {"c": 1} d', 2) == ({"c": 1}, 12)
    for text in ("NaN", '{"a": Infinity}', "[1, 2", "[" * 100_000):
        with pytest.raises(MalformedCall):
            read_json_value(text, 0)


def test_arguments_may_be_left_out_or_be_an_object_as_text() -> None:
    assert call_of({"name": "f"}) == FoundCall("f", "{}")
    assert call_of({"name": "f", "arguments": '{"a": 1}'}) == FoundCall("f", '{"a": 1}')
    assert call_of({"name": "f", "parameters": {"a": 1}}) == FoundCall("f", '{"a": 1}')


@pytest.mark.parametrize(
    "value", [[], {}, {"name": ""}, {"name": "a\nb"}, {"name": "f", "arguments": [1]}]
)
def test_a_json_value_without_a_name_or_that_is_no_object_is_not_a_tool_call(
    value: object,
) -> None:
    with pytest.raises(MalformedCall):
        call_of(value)


def test_only_half_of_a_surrogate_pair_is_escaped() -> None:
    assert json_text("é") == '"é"'
    assert json_text("\ud800") == '"\\ud800"'


def test_arguments_that_are_not_json_stay_text() -> None:
    assert arguments_value(FoundCall("f", '{"a": 1}')) == {"a": 1}
    assert arguments_value(FoundCall("f", "{broken")) == "{broken"
