"""Records of a journal: frames, torn ends, items of all kinds."""

from __future__ import annotations

import struct
import zlib

import msgspec
from hypothesis import given, strategies as st

from atroposlib.envs.journal.journal_records import (
    DataPlace,
    GroupsFinished,
    RolloutBegun,
    RolloutEnded,
    RolloutRepeated,
    RunStarted,
    SampleFinished,
    decode_item,
    encode_frame,
    encode_item,
    whole_records,
)
from tests.examples import examples

RECORDS = [
    RunStarted("run-1"),
    DataPlace(7, [3, 5]),
    RolloutBegun("a", "task", 3, b"item"),
    SampleFinished("a", b"\x00" * 100, 4, 1),
    GroupsFinished("a", [b"one", b""]),
    RolloutRepeated("a"),
    RolloutEnded("a"),
]
WHOLE = b"".join(map(encode_frame, RECORDS))


def test_records_are_read_as_they_were_written():
    assert [record for record, _ in whole_records(WHOLE)] == RECORDS
    assert [end for _, end in whole_records(WHOLE)][-1] == len(WHOLE)


def test_a_file_that_ends_anywhere_has_the_whole_frames_before_its_end():
    ends = [0, *(end for _, end in whole_records(WHOLE))]
    for length in range(len(WHOLE)):
        count = sum(end <= length for end in ends) - 1
        assert [record for record, _ in whole_records(WHOLE[:length])] == RECORDS[:count]


@examples(200)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_changed_byte_ends_the_reading_before_its_frame(at, change):
    damaged = bytearray(WHOLE)
    damaged[at] ^= change
    ends = [end for _, end in whole_records(WHOLE)]
    count = sum(end <= at for end in ends)
    assert [record for record, _ in whole_records(bytes(damaged))] == RECORDS[:count]


def test_a_record_of_a_newer_release_ends_the_reading():
    body = msgspec.msgpack.encode({"type": "newer"})
    frame = struct.pack("<II", len(body), zlib.crc32(body)) + body
    assert [
        record for record, _ in whole_records(encode_frame(RECORDS[0]) + frame)
    ] == RECORDS[:1]


scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
)
numbers = st.floats(allow_nan=False)
values = st.recursive(
    scalars | numbers | st.frozensets(st.tuples(st.text(), st.text() | st.integers(-5, 5))),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-5, 5), inner)
    ),
    max_leaves=12,
)


def kinds(value):
    """The value with the type of each part: (1,) == (1.0,) and True == 1 else."""
    if isinstance(value, dict):
        return {key: kinds(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(kinds, value))
    return type(value).__name__, value


@examples(300)
@given(values)
def test_an_item_is_read_as_it_was_stored_with_all_its_types(item):
    assert kinds(decode_item(encode_item(item))) == kinds(item)


def test_an_item_of_the_original_is_stored():
    item = ((frozenset({"role": "user", "content": "2+2"}.items()),), "4")
    assert decode_item(encode_item(item)) == item


def test_items_without_a_stored_form_are_none():
    class Task:
        pass

    for item in (Task(), {"f": len}, [2**70], {1.5: "a"}, {"x": {1, 2}}):
        assert encode_item(item) is None
