"""Notes of a trainer: every bit survives, and damaged files are refused by field."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import InvalidGroup
from atroposlib.wire import safetensors
from atroposlib.wire.notes import CLIPPED, GroupNotes, pack_notes, unpack_notes
from atroposlib.wire.safetensors import MalformedBody


@st.composite
def noted(draw: st.DrawFn) -> GroupNotes:
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    notes = GroupNotes.empty(draw(st.integers(0, 10**8 - 1)), counts)
    words = st.none() | st.text(max_size=20)
    notes.reasons[:] = draw(st.lists(words, min_size=len(counts), max_size=len(counts)))
    for name, width in (("advantages", 32), ("logprobs", 16), ("diff_max", 32)):
        values = getattr(notes, name)
        values[:] = [draw(st.floats(width=width)) for _ in values]
    notes.flags[:] = [draw(st.integers(0, 7)) for _ in notes.flags]
    return notes


def bits(notes: GroupNotes) -> list[object]:
    values = [getattr(notes, name) for name in GroupNotes.__dataclass_fields__]
    return [one.tobytes() if isinstance(one, np.ndarray) else one for one in values]


@given(noted())
def test_notes_come_back_bit_for_bit(notes: GroupNotes) -> None:
    assert bits(unpack_notes(pack_notes(notes))) == bits(notes)


@given(noted(), st.data())
def test_a_file_cut_anywhere_is_refused(notes: GroupNotes, data: st.DataObject) -> None:
    file = pack_notes(notes)
    with pytest.raises((MalformedBody, InvalidGroup)):
        unpack_notes(file[: data.draw(st.integers(0, len(file) - 1))])


def test_rows_are_views_of_the_arrays_of_their_group() -> None:
    notes = GroupNotes.empty(0, [2, 0, 1])
    advantages, logprobs, flags = notes.of_row(2)
    assert np.isnan(advantages).all() and np.isnan(logprobs).all() and len(flags) == 1
    flags[:] = CLIPPED
    assert notes.flags.tolist() == [0, 0, CLIPPED]


ARRAYS = {
    "counts": np.array([2], "<i4"),
    "advantages": np.zeros(2, "<f4"),
    "logprobs": np.zeros(2, "<f2"),
    "flags": np.zeros(2, "|u1"),
    "diff_mean": np.zeros(1, "<f4"),
    "diff_max": np.zeros(1, "<f4"),
    "reasons": np.frombuffer(b"[null]", "|u1"),
}
NAMED = {"format": "atropos-notes/1", "member": "0"}


@pytest.mark.parametrize(
    ("arrays", "named", "field"),
    [
        ({"counts": np.array([3], "<i4")}, {}, "advantages"),
        ({"counts": np.array([-1], "<i4")}, {}, "advantages"),
        ({"counts": np.array([[2]], "<i4")}, {}, "counts"),
        ({"diff_max": np.zeros(2, "<f4")}, {}, "diff_max"),
        ({"logprobs": np.zeros(2, "<f4")}, {}, "logprobs"),
        ({"reasons": np.frombuffer(b"[]", "|u1")}, {}, "reasons"),
        ({"reasons": np.frombuffer(b'{"a":1', "|u1")}, {}, "reasons"),
        ({}, {"member": "-1"}, "format"),
        ({}, {"format": "atropos-group/1"}, "format"),
    ],
)
def test_a_field_that_does_not_fit_is_named(arrays, named, field) -> None:
    assert unpack_notes(safetensors.write_tensors(ARRAYS, NAMED)).counts.tolist() == [2]
    with pytest.raises(InvalidGroup, match=field):
        unpack_notes(safetensors.write_tensors({**ARRAYS, **arrays}, {**NAMED, **named}))
