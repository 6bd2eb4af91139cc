"""Stored groups in the other encoding: large ones in pieces, with the numbers of small ones."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from atroposlib.api.codec import delivery, json_pieces
from atroposlib.api.codec.delivery import Encoding, encode_group
from atroposlib.api.codec.json import _decoded_group
from atroposlib.api.common.records import BatchMember, Media, Payload
from atroposlib.errors import CorruptPayload
from atroposlib.wire import ScoredData, binary_pieces
from atroposlib.wire.binary import pack_group, split_frames, unpack_columns, unpack_group
from atroposlib.wire.columns import from_group
from atroposlib.wire.routing import encoded
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


def stored(group, media):
    if media is Media.JSON:
        return Payload(_decoded_group(json.dumps(group).encode(), None).payload, media)
    return Payload(pack_group(group, compress=media is Media.SAFETENSORS_ZSTD), media)


def delivered(payload, form, version=None, min_version=None):
    """The record in the pieces of a delivery."""
    member = BatchMember(**MEMBER, media=payload.media, version=version, arrived_version=7)
    body = b"".join(encode_group(payload, member, form, min_version))
    if form is Encoding.JSON:
        assert list(json.loads(body)) == list(ScoredData.__struct_fields__)
        return msgspec.json.decode(body, type=ScoredData)
    [file] = split_frames(body)
    return unpack_group(file)


def experts_of(payload):
    return delivery.read_columns(payload).routed_experts.tolist()


def both(payload, form, *versions):
    """The record as a small group is sent, and as a large one is."""
    whole = delivered(payload, form, *versions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "WHOLE_BYTES", 0)
        patch.setattr(delivery, "_NUMBERS", 3)
        patch.setattr(binary_pieces, "CHUNK_BYTES", 8)
        patch.setattr(json_pieces, "CHUNK_BYTES", 4)
        return whole, delivered(payload, form, *versions)


@examples(40)
@given(groups(), st.sampled_from(Media), st.sampled_from(Encoding))
def test_a_large_group_is_delivered_as_a_small_one(group, media, form):
    assume(not any(abs(s) >= 2**64 for s in group["scores"]))
    whole, pieces = both(stored(group, media), form)
    if group.get("routed_experts"):  # those that are not known are written out
        known = [from_group(one).routed_experts for one in (pieces, whole)]
        assert np.array_equal(*known)
        pieces.routed_experts = whole.routed_experts
    assert pieces == whole


@pytest.mark.parametrize("form", Encoding)
@pytest.mark.parametrize("media", Media)
@pytest.mark.parametrize("group", [GROUP, GROUP | {"versions": None}])
def test_stale_tokens_of_a_large_group_are_masked(group, media, form):
    version = 7 if group["versions"] else None
    whole, pieces = both(stored(group, media), form, version, 8)
    assert pieces == whole
    kept = [[-100, 5, -100], [-100, 3]] if group["versions"] else [[-100] * 3, [-100] * 2]
    assert whole.masks == kept


@pytest.mark.parametrize("media", Media)
def test_the_experts_of_a_large_group_are_delivered(media):
    few = encoded(np.array([[[0, 300]], [[2, 3]]]))
    for rows in ([few, None], [None, encoded(np.zeros((1, 1, 2), int))]):
        payload = stored(GROUP | {"routed_experts": rows}, media)
        for form in Encoding:
            whole, pieces = both(payload, form)
            assert whole.routed_experts == rows
            assert from_group(pieces).routed_experts.tolist() == experts_of(payload)


def test_a_large_file_is_written_uncompressed_with_one_label_per_token(monkeypatch):
    monkeypatch.setattr(delivery, "WHOLE_BYTES", 0)
    payload = stored(GROUP, Media.JSON)
    member = BatchMember(**MEMBER, media=Media.JSON, version=None)
    [file] = split_frames(b"".join(encode_group(payload, member, Encoding.FRAMES, None)))
    columns = unpack_columns(file)
    assert columns.masks.tolist() == [-100, 5, 9, -100, 3]
    assert columns.floats["inference_logprobs"].dtype == np.float64


@pytest.mark.parametrize("limit", [0, 2**20])
def test_a_payload_that_is_no_group_is_corrupt(monkeypatch, limit):
    monkeypatch.setattr(delivery, "WHOLE_BYTES", limit)
    for media in (Media.JSON, Media.SAFETENSORS):
        member = BatchMember(**MEMBER, media=media, version=None)
        other = Encoding.FRAMES if media is Media.JSON else Encoding.JSON
        with pytest.raises(CorruptPayload):
            list(encode_group(Payload(b"{]", media), member, other, None))
