"""Groups as safetensors: the same group comes back, and nothing else is accepted."""

from __future__ import annotations

import json
import re
import struct
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
import zstandard
from hypothesis import given, strategies as st

from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import (
    concatenate_frames,
    pack_group,
    split_frames,
    unpack_group,
)
from atroposlib.wire.safetensors import MalformedBody
from tests.api.codec.group_strategies import broken, groups
from tests.examples import examples
from tests.wire.records import GROUP, as_record


def rounded(rows):
    """As a field of float32 keeps it; one with a number beyond float32 keeps float64."""
    flat = [number for row in rows for number in row]
    if any(abs(number) > float(np.finfo(np.float32).max) for number in flat):
        return rows
    return [[float(np.float32(number)) for number in row] for row in rows]


def expected(group):
    record = as_record(group)
    lengths = [len(row) for row in record.tokens]
    for name in ("inference_logprobs", "ref_logprobs", "advantages"):
        rows = getattr(record, name)
        if rows is not None and [len(row) for row in rows] == lengths:
            setattr(record, name, rounded(rows))
    if (distilled := record.distill_logprobs) is not None:
        flat = iter(rounded([choices for row in distilled for choices in row]))
        record.distill_logprobs = [[next(flat) for _ in row] for row in distilled]
    return record


@examples(50)
@given(groups(), st.booleans())
def test_a_group_round_trips_with_floats_rounded_to_float32_and_exact_scores(group, compress):
    assert unpack_group(pack_group(group, compress=compress)) == expected(group)


def test_a_label_that_differs_from_its_token_is_kept():
    odd = GROUP | {"masks": [[-100, 8, 9], [-7, 7]]}
    data = pack_group(odd, compress=False)
    assert safetensors.numpy.load(data)["labels"].tolist() == [-100, 8, 9, -7, 7]
    assert unpack_group(data).masks == odd["masks"]


# --- damage -----------------------------------------------------------------------------


def file_of(changes=(), metadata=None, **arrays):
    """A safetensors file of GROUP with some arrays replaced, or removed by None."""
    kept = safetensors.numpy.load(pack_group(GROUP, compress=False)) | arrays
    for name in [name for name, one in kept.items() if one is None]:
        del kept[name]
    return safetensors.numpy.save(kept, metadata)


def ints(*values):
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (file_of(tokens=None), "tokens"),
        (file_of(tokens=ints(1, 2, 3, -4, 5)), "tokens[1][0]"),
        (file_of(tokens=ints(1, 2, 3, 4)), "mask"),
        (file_of(tokens=ints(1, 2, 3, 4, 5).astype(np.float32)), "tokens"),
        (file_of(tokens=ints(1, 2, 3, 4, 5).reshape(1, 5)), "tokens"),
        (file_of(seq_lens=ints(3, 3)), "seq_lens"),
        (file_of(seq_lens=ints(5, 0)), "tokens[1]"),
        (file_of(seq_lens=ints(6, -1)), "tokens[1]"),
        (file_of(mask=np.array([0, 0, 2, 0, 1], np.uint8)), "mask"),
        (file_of(labels=ints(-100, -100, -100, -100, 7)), "labels"),
        (file_of(scores=np.array([1.0])), "scores"),
        (file_of(scores=np.array([1.0, np.nan])), "scores[1]"),
        (file_of(inference_logprobs=np.full(5, -np.inf, np.float32)), "[0][0]"),
        (file_of(versions=ints(-1, -1, 3, -1, -2)), "versions[1][1]"),
        (file_of(extra=ints(1)), "header"),
        (file_of(distill_counts=ints(1, 1, 1, 1, 1)), "distill_counts"),
        (file_of(distill_token_ids=ints(1, 2)), "distill_token_ids"),
        (file_of(rest=np.frombuffer(b'{"tokens":[]}', np.uint8)), "rest"),
        (file_of(rest=np.frombuffer(b'{"images":"\xff"}', np.uint8)), "rest"),
        (file_of(rest=np.frombuffer(b'{"overrides":[{}]}', np.uint8)), "overrides"),
        (file_of(rest=np.frombuffer(b'{"outcomes":["ok","x"]}', np.uint8)), "outcomes"),
        (file_of(metadata={"env_id": "1e3"}), "env_id"),
        (file_of(metadata={"format": "other/2"}), "format"),
    ],
)
def test_an_invalid_file_is_rejected_with_the_field_named(data, place):
    with pytest.raises(InvalidGroup) as refusal:
        unpack_group(data)
    assert place in str(refusal.value)


RAW = pack_group(GROUP, compress=False)
ZSTD = pack_group(GROUP)


def with_head(change):
    """The file with the text of its header changed."""
    size = struct.unpack("<Q", RAW[:8])[0]
    head = change(RAW[8 : 8 + size])
    return struct.pack("<Q", len(head)) + head + RAW[8 + size :]


def with_header(change):
    def changed(head):
        header = json.loads(head)
        change(header)
        return json.dumps(header).encode()

    return with_head(changed)


MASK_ENTRY = re.search(rb'"mask":(\{.*?\})', RAW)[1]


def streamed(data):
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        RAW[:-1],
        RAW + b"\x00",
        struct.pack("<Q", 2**63) + RAW[8:],
        with_header(lambda h: h["mask"].update(data_offsets=[0, 5])),
        with_header(lambda h: h["mask"].update(data_offsets=[2**62, 2**62 + 5])),
        with_header(lambda h: h["mask"].update(more=1)),
        RAW.replace(b'"seq_lens":', b'"tokens"  :'),
        with_head(lambda head: head.replace(b'"mask":', b'"mask":%s,"mask":' % MASK_ENTRY)),
        ZSTD[:-1],
        ZSTD + b"\x00",
        ZSTD + ZSTD,
        ZSTD[:4],
        streamed(RAW),
        zstandard.ZstdCompressor().compress(bytes(129 * 2**20)),
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_invalid_files_and_incomplete_frames_are_rejected(data):
    with pytest.raises(MalformedBody):
        unpack_group(data)


def test_a_frame_of_zeros_is_rejected_before_memory_is_allocated():
    bomb = zstandard.ZstdCompressor().compress(bytes(100 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedBody):
            unpack_group(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@examples(150)
@given(st.data(), st.sampled_from([RAW, ZSTD]))
def test_damaged_files_raise_only_the_validation_error(data, whole):
    damaged = data.draw(broken(whole))
    try:
        group = unpack_group(damaged)
    except (MalformedBody, InvalidGroup):
        return
    assert (
        unpack_group(pack_group(group)) is not None
    )  # every accepted group can be trained on


def test_splitting_inverts_joining_of_frames():
    files = [RAW, ZSTD, b""]
    joined = concatenate_frames(files)
    assert [bytes(one) for one in split_frames(joined)] == files
    assert split_frames(b"") == []
    assert unpack_group(split_frames(joined)[0]) == unpack_group(RAW)


@pytest.mark.parametrize("cut", [1, 7, 9, 20])
def test_truncated_frames_are_rejected(cut):
    with pytest.raises(MalformedBody):
        split_frames(
            concatenate_frames([ZSTD])[:-cut]
            if cut < 9
            else concatenate_frames([ZSTD])[: cut - 8]
        )
    with pytest.raises(MalformedBody, match="too many"):
        split_frames(concatenate_frames([b"", b"", b""]), max_frames=2)
