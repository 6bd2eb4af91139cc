"""Routed experts on the wire: both encodings, rows of unequal knowledge, and their bounds."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO

import msgspec
import numpy as np
import pytest
import safetensors.numpy

from atroposlib.api.codec import read_group
from atroposlib.api.codec.json_group import JsonGroup
from atroposlib.errors import InvalidGroup, TokensMissing
from atroposlib.wire.binary import pack_columns, pack_group, unpack_columns, unpack_group
from atroposlib.wire.columns import to_group
from atroposlib.wire.routing import (
    experts_array,
    experts_entry,
    experts_of,
    join_experts,
    unstack,
)
from tests.wire.records import GROUP

FIRST = np.array([[[0, 1], [2, 3]], [[3, -1], [1, 0]]])  # (2, 2, 2): two of the three tokens
SECOND = np.array([[[2, 0], [1, 3]], [[1, 2], [0, 2]]])


def experts(count: int, value: int = 0) -> dict[str, object]:
    return dict(experts_entry(np.full((count, 2, 2), value)))


def test_a_row_is_the_same_after_base64_in_the_narrowest_type():
    routed = experts_entry(FIRST)
    assert routed == {"shape": [2, 2, 2], "data": "AAECAwP/AQA="}
    assert experts_array(routed).tolist() == FIRST.tolist()
    wide = np.array([[[300, -1]]])
    assert experts_array(experts_entry(wide)).tolist() == wide.tolist()


@pytest.mark.parametrize(
    "rows", [[experts_entry(FIRST), experts_entry(SECOND)], [None, experts_entry(SECOND)]]
)
def test_both_encodings_carry_the_experts_of_every_row(rows):
    sent = GROUP | {"routed_experts": rows}
    assert unpack_group(pack_group(sent)).routed_experts == rows
    for body, media in (
        (pack_group(sent), "application/x-safetensors"),
        (msgspec.json.encode(sent), "application/json"),
    ):
        kept = read_group(body, media)
        columns = unpack_columns(kept.payload)
        assert to_group(columns).routed_experts == rows
        assert to_group(unpack_columns(pack_columns(columns))).routed_experts == rows
    large = JsonGroup(msgspec.json.encode(sent)).head.routed_experts
    assert unstack(large, np.array([len(row) for row in sent["tokens"]])) == rows


def test_the_binary_form_is_one_array_of_all_tokens():
    rows = [experts_entry(FIRST), experts_entry(np.full((1, 2, 2), 300))]
    file = pack_group(GROUP | {"routed_experts": rows}, compress=False)
    array = safetensors.numpy.load(file)["routed_experts"]
    assert (array.dtype, array.shape) == (np.uint16, (5, 2, 2))
    assert array[1, 0].tolist() == [3, 65_535] and array[3].tolist() == [[300] * 2] * 2
    assert (array[[2, 4]] == 65_535).all()
    assert unpack_group(file).routed_experts[1] == rows[1]


def test_a_group_without_experts_has_the_bytes_that_it_always_had():
    for nothing in (None, [None, None]):
        assert pack_group(GROUP | {"routed_experts": nothing}) == pack_group(GROUP)


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        ([None], "routed_experts"),
        ([experts(4), None], "routed_experts"),
        ([experts(2), dict(experts_entry(np.zeros((1, 1, 4), int)))], "routed_experts"),
        ([{"shape": [-1, 2, 2], "data": "AAAAAAAAAAAAAAAAAAAAAA=="}, None], "routed_experts"),
        ([{"shape": [1, 2], "data": "AAA="}, None], "routed_experts"),
        ([{"shape": [1, 2, -2], "data": "AAA="}, None], "routed_experts"),
        ([{"shape": [1, 0, 2], "data": ""}, None], "routed_experts"),
        ([{"shape": [0, 4097, 1], "data": ""}, None], "routed_experts"),
        ([{"shape": [1, 1, 2], "data": "AAAA"}, None], "routed_experts"),
        ([{"shape": [1, 1, 2], "data": "secret!"}, None], "routed_experts"),
        ([[[[0, 1]]], None], "group"),
    ],
)
def test_experts_of_another_shape_are_refused_by_every_reader(rows, place):
    sent = GROUP | {"routed_experts": rows}
    with pytest.raises(InvalidGroup) as refusal:
        pack_group(sent)
    assert place in str(refusal.value) and "secret" not in str(refusal.value)
    with pytest.raises(InvalidGroup, match="routed_experts"):
        read_group(msgspec.json.encode(sent), "application/json")
    with pytest.raises(InvalidGroup, match="routed_experts"):
        JsonGroup(msgspec.json.encode(sent))


@pytest.mark.parametrize("shape", [(4, 2, 2), (5, 4), (5, 2, 2, 1), (5, 65, 64)])
def test_an_array_of_another_shape_is_refused(shape):
    tensors = safetensors.numpy.load(pack_group(GROUP, compress=False))
    tensors["routed_experts"] = np.zeros(shape, np.uint8)
    with pytest.raises(InvalidGroup, match="routed_experts"):
        unpack_group(safetensors.numpy.save(tensors, {"format": "atropos-group/1"}))


def test_a_short_row_cannot_claim_the_memory_of_a_long_group():
    tokens = [[1] * 40_000]
    long = {"tokens": tokens, "masks": tokens, "scores": [1.0]}
    with pytest.raises(InvalidGroup, match="experts of 1 of 40000 tokens"):
        pack_group(
            long | {"routed_experts": [dict(experts_entry(np.zeros((1, 64, 64), int)))]}
        )


def test_joined_parts_keep_what_was_recorded_first():
    assert join_experts((0, None), (1, None)) is None
    assert experts_array(
        join_experts((0, experts_entry(FIRST)), (0, experts_entry(SECOND))) or {}
    ).tolist() == (FIRST.tolist())
    grown = join_experts((0, experts_entry(FIRST)), (1, experts_entry(SECOND)))
    assert grown is not None and experts_array(grown)[1:].tolist() == [
        FIRST[1].tolist(),
        SECOND[1].tolist(),
    ]
    apart = join_experts((0, experts_entry(FIRST[:1])), (2, experts_entry(SECOND)))
    assert apart is not None and (experts_array(apart)[1] == -1).all()

    assert join_experts((0, experts_entry(FIRST)), start=1, end=5) == experts_entry(FIRST[1:])


def npy(experts: object) -> str:
    np.save(file := BytesIO(), experts)
    return b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.int32])
def test_the_npy_file_of_vllm_and_the_flat_array_of_sglang_are_read(kind):
    assert experts_of(npy(SECOND.astype(kind)), 9) == experts_entry(SECOND)
    flat = b64encode(SECOND.astype(np.int32).tobytes()).decode()
    assert experts_of(flat, 3) == experts_entry(SECOND.reshape(2, 1, 4))


@pytest.mark.parametrize(
    "sent", [npy(SECOND)[:40], npy(SECOND / 2), npy([SECOND]), "AAAA", "!", [[0]]]
)
def test_an_answer_of_another_form_is_rejected(sent):
    with pytest.raises(TokensMissing, match="routed_experts"):
        experts_of(sent, 3)
