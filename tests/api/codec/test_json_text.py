"""Places in a JSON text: members, elements of a list, and rows of numbers in chunks."""

from __future__ import annotations

import json
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.api.codec import json_text
from atroposlib.api.codec.json_text import member_places, row_chunks
from atroposlib.wire.safetensors import MalformedBody
from tests.api.codec.group_strategies import DICT, VALUE, bodies
from tests.examples import examples


@examples(100)
@given(st.data(), DICT, st.sampled_from([1, 2**15]))
def test_each_member_is_found_by_its_key(data, value, short):
    body = data.draw(bodies(value))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_SHORT_BYTES", short)
        patch.setattr(json_text, "CHUNK_BYTES", 8)
        places = member_places(body, {})
    assert {name: json.loads(body[place]) for name, place in places.items()} == value


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("text", ["[ ]", "[[[1, 2] , [ ]\n] ]", "[[[3]],\n[[4],[5 ]\t]]"])
def test_lists_of_numbers_end_where_their_brackets_close(depth, text):
    value = json.loads(text)
    for _ in range(3 - depth):
        value = [numbers for row in value for numbers in row]
    body = json.dumps({"a": value, "b": [[[]]]}, indent=1).encode()
    assert json.loads(body[member_places(body, {"a": depth})["a"]]) == value


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"a":1,}', b'{"a":"\\"}', b'{"a":1}x'])
def test_a_text_that_is_no_object_is_malformed(text):
    with pytest.raises(MalformedBody):
        member_places(text, {})


def test_rows_are_read_while_a_debugger_keeps_the_frames_of_the_last_call():
    documents = []

    def keep(frame, event, argument):
        if event == "return" and "document" in frame.f_locals:
            documents.append(frame.f_locals["document"])
        return keep

    text = b"[[1, 2], [3]]"
    sys.settrace(keep)
    try:
        values = [
            chunk.values.tolist()
            for _ in range(2)
            for chunk in row_chunks(text, slice(0, len(text)), np.int64, lists=False)
        ]
    finally:
        sys.settrace(None)
    assert len(documents) == 2
    assert values == [[1, 2, 3], [1, 2, 3]]


ROWS = st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=9), min_size=1, max_size=5)


@examples(150)
@given(ROWS, st.sampled_from([4, 16, 2**17]), st.sampled_from([None, 0]))
def test_rows_in_chunks_are_the_rows(rows, chunk_bytes, indent):
    text = json.dumps(rows, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "CHUNK_BYTES", chunk_bytes)
        chunks = list(row_chunks(text, slice(0, len(text)), np.int64, lists=False))
    lengths: list[int] = []
    for chunk in chunks:
        first, *others = chunk.lengths.tolist()
        lengths += others if chunk.goes_on else [first, *others]
        if chunk.goes_on:
            lengths[-1 - len(others)] += first
    assert lengths == list(map(len, rows))
    flat = np.concatenate([chunk.values for chunk in chunks])
    assert flat.tolist() == [number for row in rows for number in row]


@examples(60)
@given(VALUE)
def test_what_is_no_list_of_rows_of_integers_is_refused(value):
    text = msgspec.json.encode([[1], value])
    is_row = isinstance(value, list) and all(type(number) is int for number in value)
    try:
        list(row_chunks(text, slice(0, len(text)), np.int64, lists=False))
    except (ValueError, TypeError, RuntimeError, IndexError):
        assert not is_row
    else:
        assert is_row
