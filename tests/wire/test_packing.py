"""A file of a group: made of arrays in chunks as of whole ones, exact or rounded floats."""

from __future__ import annotations

import numpy as np
import pytest

from atroposlib.errors import InvalidGroup
from atroposlib.wire import binary
from atroposlib.wire.binary import PackedGroup, pack_group, unpack_columns, unpack_group
from atroposlib.wire.columns import from_group
from atroposlib.wire.packing import as_float32, exact, file_of, pack, with_floats
from tests.wire.records import GROUP, as_record

ODD = {"distill_token_ids": [[[1, 2], [], [3]], [[4], [5, 6]]]}
EVEN = {"distill_token_ids": [[[1, 2]] * 3, [[3, 4]] * 2]}
LABELS = {"masks": [[-100, 4, 9], [-100, 7]]}


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("held_bytes", [0, 2**20])
@pytest.mark.parametrize(
    "more", [{}, ODD, EVEN, LABELS, {"advantages": [[1e300] * 3, [0.0] * 2]}]
)
def test_a_file_made_of_chunks_is_the_file_made_of_whole_arrays(
    monkeypatch, compress, held_bytes, more
):
    monkeypatch.setattr(binary, "CHUNK_BYTES", 8)
    packed = pack_group(GROUP | more, compress=compress)
    size, pieces = file_of(PackedGroup(packed, held_bytes))
    file = b"".join(pieces)
    assert len(file) == size
    assert file == pack_group(GROUP | more, compress=False)


def test_a_compressed_file_declares_its_size_and_is_bounded():
    columns = from_group(as_record(GROUP))
    size, _ = file_of(columns)
    assert binary.frame_content_size(pack(columns, compress_above=0)) == size
    assert len(pack(columns, compress_above=size)) == size
    with pytest.raises(InvalidGroup, match="more than 10"):
        pack(columns, compress_above=None, max_bytes=10)


def test_floats_are_kept_exactly_or_rounded_to_float32():
    values = np.array([0.1, -2.5])
    assert exact(values) is values
    assert exact(np.array([0.5, -2.5, -0.0])).dtype == exact(np.empty(0)).dtype == np.float32
    assert as_float32(values).tolist() == values.astype(np.float32).tolist()
    assert as_float32(np.array([1e300])).dtype == exact(np.array([1e300])).dtype == np.float64
    record = as_record(GROUP | ODD | {"ref_logprobs": [[0.1] * 3, [0.2] * 2]})
    packed = pack(with_floats(from_group(record), exact), compress_above=0)
    assert unpack_group(packed).ref_logprobs == record.ref_logprobs


@pytest.mark.parametrize("name", ["group_id", "idempotency_key"])
def test_a_text_that_is_too_long_for_the_header_is_kept(name):
    for text in ("\x01" * 100_000, "data_offsets", '"data_offsets"'):
        record = unpack_group(pack_group(GROUP | {name: text}))
        assert getattr(record, name) == text and record.messages == GROUP["messages"]


def test_a_number_of_many_digits_is_kept():
    for number in (10**400, -(2**63)):
        columns = unpack_columns(pack_group(GROUP | {"incarnation": number}))
        assert columns.incarnation == number
