"""Counting of one byte in a body, for the bound on nesting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atroposlib.api.codec.json_columns import count_byte


@given(st.lists(st.sampled_from([b"[", b"a", b"[[", b"x" * 700, b"[" * 1500])))
def test_brackets_are_counted_in_short_and_long_texts(pieces):
    body = b"".join(pieces)
    assert count_byte(b"[", body) == body.count(b"[")
