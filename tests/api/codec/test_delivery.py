"""Stored groups in either encoding: large ones in pieces, with the numbers of small ones."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.api.codec import delivery, read_group
from atroposlib.api.codec.delivery import Encoding, encode_group
from atroposlib.api.common.records import BatchMember
from atroposlib.errors import CorruptPayload
from atroposlib.wire import ScoredData, binary
from atroposlib.wire.binary import pack_group, split_frames, unpack_columns, unpack_group
from atroposlib.wire.columns import from_group
from atroposlib.wire.routing import experts_entry
from tests.api.codec.group_strategies import groups
from tests.examples import examples

GROUP = {
    "tokens": [[1, 5, 9], [2, 7]],
    "masks": [[-100, 5, 9], [-100, 3]],
    "scores": [1.0, 0.5],
    "inference_logprobs": [[1.0, -0.25, -0.5], [1.0, -1e300]],
    "versions": [[-1, 8, 7], [-1, 9]],
    "images": ["iVBOR", None],
    "metadata": {"a": [1, None]},
}
MEMBER = {"gid": 1, "env": None, "n_seq": 2, "n_tokens": 3, "n_bytes": 1}
POSTED = ("json", "safetensors", "safetensors+zstd")


def stored(group, posted):
    """The payload of a group that was posted so."""
    if posted == "json":
        return read_group(json.dumps(group).encode(), "application/json").payload
    body = pack_group(group, compress=posted == "safetensors+zstd")
    return read_group(body, "application/x-safetensors").payload


def delivered(payload, form, version=None, min_version=None):
    """The record in the pieces of a delivery."""
    member = BatchMember(**MEMBER, version=version, arrived_version=7)
    body = b"".join(encode_group(payload, member, form, min_version))
    if form is Encoding.JSON:
        assert list(json.loads(body)) == list(ScoredData.__struct_fields__)
        return msgspec.json.decode(body, type=ScoredData)
    [file] = split_frames(body)
    return unpack_group(file)


def experts_of(payload):
    return unpack_columns(payload).routed_experts.tolist()


def both(payload, form, *versions):
    """The record as a small group is sent, and as a large one is."""
    whole = delivered(payload, form, *versions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "WHOLE_BYTES", 0)
        patch.setattr(delivery, "_NUMBERS", 3)
        patch.setattr(binary, "CHUNK_BYTES", 8)
        return whole, delivered(payload, form, *versions)


@examples(60)
@given(groups(), st.sampled_from(POSTED), st.sampled_from(Encoding))
def test_a_large_group_is_delivered_as_a_small_one(group, posted, form):
    whole, pieces = both(stored(group, posted), form)
    if group.get("routed_experts"):  # those that are not known are written out
        known = [from_group(record).routed_experts for record in (pieces, whole)]
        assert np.array_equal(*known)
        pieces.routed_experts = whole.routed_experts
    assert pieces == whole


@examples(60)
@given(groups(), st.sampled_from(POSTED))
def test_both_encodings_deliver_the_same_group(group, posted):
    payload = stored(group, posted)
    assert delivered(payload, Encoding.JSON) == delivered(payload, Encoding.FRAMES)


@examples(30)
@given(groups(), st.booleans())
def test_a_binary_group_is_delivered_byte_for_byte(group, compress):
    sent = pack_group(
        {name: group[name] for name in group if name != "marks"}, compress=compress
    )
    payload = read_group(sent, "application/x-safetensors").payload
    member = BatchMember(**MEMBER, version=None)
    [file] = split_frames(b"".join(encode_group(payload, member, Encoding.FRAMES, None)))
    assert file == payload
    if unpack_group(sent).marks is None and unpack_group(payload).marks is None:
        assert payload == sent


@pytest.mark.parametrize("form", Encoding)
@pytest.mark.parametrize("posted", POSTED)
@pytest.mark.parametrize("group", [GROUP, GROUP | {"versions": None}])
def test_stale_tokens_of_a_large_group_are_masked(group, posted, form):
    version = 7 if group["versions"] else None
    whole, pieces = both(stored(group, posted), form, version, 8)
    assert pieces == whole
    kept = [[-100, 5, -100], [-100, 3]] if group["versions"] else [[-100] * 3, [-100] * 2]
    assert whole.masks == kept


@pytest.mark.parametrize("posted", POSTED)
def test_the_experts_of_a_large_group_are_delivered(posted):
    few = experts_entry(np.array([[[0, 300]], [[2, 3]]]))
    for rows in ([few, None], [None, experts_entry(np.zeros((1, 1, 2), int))]):
        payload = stored(GROUP | {"routed_experts": rows}, posted)
        whole, pieces = both(payload, Encoding.FRAMES)
        assert whole.routed_experts == pieces.routed_experts == rows
        for record in both(payload, Encoding.JSON):
            assert from_group(record).routed_experts.tolist() == experts_of(payload)


def test_a_group_that_is_masked_at_delivery_is_written_uncompressed():
    payload = stored(GROUP, "safetensors+zstd")
    member = BatchMember(**MEMBER, version=7)
    [file] = split_frames(b"".join(encode_group(payload, member, Encoding.FRAMES, 8)))
    assert not binary.is_zstd(file)
    columns = unpack_columns(file)
    assert columns.masks.tolist() == [-100, 5, -100, -100, 3]
    assert columns.floats["inference_logprobs"].dtype == np.float64


@pytest.mark.parametrize("limit", [0, 2**20])
def test_a_payload_that_is_no_group_is_corrupt(monkeypatch, limit):
    monkeypatch.setattr(delivery, "WHOLE_BYTES", limit)
    member = BatchMember(**MEMBER, version=None)
    for payload in (b"{]", binary.ZSTD_MAGIC + b"{]", pack_group(GROUP)[:-9]):
        with pytest.raises(CorruptPayload):
            list(encode_group(payload, member, Encoding.JSON, None))
