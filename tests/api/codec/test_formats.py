"""Binary groups at the door: kept as received, once their values are checked."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy
import zstandard
from hypothesis import given

from atroposlib.api.codec import read_group, read_groups
from atroposlib.api.codec.formats import QUICK_BINARY_BYTES, is_quick
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import concatenate_frames, pack_group, unpack_group
from atroposlib.wire.safetensors import MalformedBody
from tests.api.codec.group_strategies import groups
from tests.examples import examples

ONE, MANY = "application/x-safetensors", "application/x-atropos-groups"
GROUP = {
    "tokens": [[1, 5, 9], [2, 7]],
    "masks": [[-100, 5, 9], [-100, 7]],
    "scores": [1.0, 0.5],
    "versions": [[-1, 8, 7], [-1, 9]],
    "env_id": 4,
    "group_overrides": {"group_size": 6},
}


def test_a_body_is_parsed_on_the_event_loop_only_if_it_stays_small_inflated():
    small = pack_group(GROUP)
    bomb = zstandard.ZstdCompressor().compress(bytes(QUICK_BINARY_BYTES + 1))
    assert is_quick(small, ONE) and is_quick(b"{}", "application/json")
    assert len(bomb) < 100 and not is_quick(bomb, ONE)
    assert not is_quick(concatenate_frames([small]), MANY)
    assert not is_quick(b" " * 20_000, "application/json") and not is_quick(iter([]), ONE)
    with pytest.raises(MalformedBody):
        is_quick(small[:4], ONE)


@pytest.mark.parametrize("compress", [True, False])
def test_a_group_is_kept_as_received(compress):
    body = pack_group(GROUP | {"idempotency_key": "k"}, compress=compress)
    got = read_group(body, ONE, "header")
    assert got.payload is body
    assert got.posted_as == ("safetensors+zstd" if compress else "safetensors")
    assert (got.n_seq, got.n_tokens, got.env, got.key) == (2, 3, 4, "k")
    assert (got.version, got.declared_size, got.marks) == (7, 6, ())
    assert read_group(pack_group(GROUP), ONE + "; v=1", "header").key == "header"


@examples(50)
@given(groups())
def test_the_binary_and_the_json_form_decode_to_the_same_group(group):
    binary = read_group(pack_group(group), ONE)
    text = read_group(json.dumps(group).encode(), "application/json")
    for name in ("n_seq", "n_tokens", "env", "key", "version", "declared_size", "marks"):
        assert getattr(binary, name) == getattr(text, name), name


def test_advantages_of_another_length_are_marked_and_marks_of_the_client_are_removed():
    odd = read_group(pack_group(GROUP | {"advantages": [[1.0]], "marks": ["x"]}), ONE)
    assert odd.marks == ("advantages_length",)
    kept = unpack_group(odd.payload)
    assert (kept.marks, kept.advantages) == (["advantages_length"], [[1.0]])
    good = read_group(pack_group(GROUP | {"marks": ["x"]}, compress=False), ONE)
    assert unpack_group(good.payload).marks is None
    assert good.posted_as == "safetensors"


def test_frames_hold_many_groups_in_either_form():
    files = [pack_group(GROUP), pack_group(GROUP, compress=False)]
    got = read_groups(concatenate_frames(files), MANY)
    assert [one.payload for one in got] == files
    assert read_groups(b"", MANY) == []


def test_an_invalid_group_is_rejected_with_the_field_and_index():
    bad = safetensors.numpy.load(pack_group(GROUP, compress=False))
    bad["scores"] = np.array([1.0, np.inf])
    files = [pack_group(GROUP), safetensors.numpy.save(bad)]
    with pytest.raises(InvalidGroup, match=r"^scores\[1\]: not a finite number$"):
        read_group(files[1], ONE)
    with pytest.raises(InvalidGroup, match=r"^\[1\]\.scores\[1\]"):
        read_groups(concatenate_frames(files), MANY)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"tokens":[[1]]}',
        pack_group(GROUP)[:-1],
        zstandard.ZstdCompressor().compress(bytes(2**27 + 1)),
        zstandard.ZstdCompressor().compress(bytes(2**26)),
    ],
    ids=["nothing", "json", "cut", "too large", "zeros"],
)
def test_a_body_that_is_not_a_group_is_malformed(body):
    with pytest.raises(MalformedBody):
        read_group(body, ONE)
    with pytest.raises(MalformedBody):
        read_groups(concatenate_frames([pack_group(GROUP), body]), MANY)
    with pytest.raises(MalformedBody):
        read_groups(concatenate_frames([pack_group(GROUP)])[:-1], MANY)


def test_a_large_group_of_equal_numbers_is_decoded():
    tokens = [[7] * 400_000] * 5
    body = pack_group({"tokens": tokens, "masks": tokens, "scores": [0.0] * 5})
    assert len(body) < 20_000
    assert read_group(body, ONE).n_tokens == 2_000_000
