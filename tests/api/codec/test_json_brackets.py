"""Counting of one byte in a body, for the bound on nesting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atroposlib.api.codec.json_columns import count_byte


@given(st.lists(st.sampled_from([b"[", b"a", b"[[", b"x" * 700, b"[" * 1500])))
def test_brackets_are_counted_whether_few_or_many(pieces):
    body = b"".join(pieces)
    assert count_byte(b"[", body) == body.count(b"[")
