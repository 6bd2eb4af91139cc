"""Lines of JSON with texts and numbers that break careless readers and writers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from atroposlib.text.lines import (
    aligned_lines,
    encodable,
    encodable_values,
    json_line,
    json_lines,
)


def refuse(word):
    raise ValueError(word)


@pytest.mark.parametrize(
    "text", ["a\u2028b", "a\u2029b", "a\x85b", "a\x0bb\x0cc", "a\rb", "a\r\nb", "\x1c\x1d\x1e"]
)
def test_a_line_with_any_separator_is_one_line(text):
    lines = json_line({"a": text}) + json_line({"b": 1})
    assert json_lines(lines) == [{"a": text}, {"b": 1}]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), None),
        (float("inf"), None),
        ([1.5, -float("inf")], [1.5, None]),
        ({"a": {"b": float("nan")}}, {"a": {"b": None}}),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({2, 1}), [1, 2]),
        ((1, (2,)), [1, [2]]),
        ({1: "a"}, {"1": "a"}),
        (10**40, 10**40),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_values_without_a_form_in_json_are_written_as_something_that_has_one(value, written):
    assert json.loads(json_line(value), parse_constant=refuse) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("cut \ud83d", "cut \ufffd"),
        ("\ude00 late", "\ufffd late"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ud83d x \ude00", "\ufffd x \ufffd"),
        ("\U0001f600 é", "\U0001f600 é"),
    ],
)
def test_halves_of_surrogate_pairs_are_replaced_and_whole_pairs_joined(text, written):
    assert encodable(text) == written
    assert encodable_values({text: [text, 1]}) == {written: [written, 1]}
    assert json.loads(json_line({"a": text})) == {"a": written}


@given(
    st.lists(
        st.dictionaries(
            st.text(),
            st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
        )
    )
)
def test_what_is_written_is_read_back(values):
    assert json_lines("".join(map(json_line, values))) == values


@given(st.text(st.characters(categories=None)))
def test_any_text_can_be_written(text):
    json_line(text).encode()


def test_columns_of_rows_are_aligned_without_blanks_at_the_end():
    rows = [("name", "reward", "note"), ("a", "0.25", ""), ("longer", "1", "x")]
    assert aligned_lines(rows) == ["name    reward  note", "a       0.25", "longer  1       x"]
