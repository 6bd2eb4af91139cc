"""Large JSON bodies, parsed in pieces, against the full decoder."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from atroposlib.api.codec import json_pieces
from atroposlib.api.codec.json import _decoded_group, _large_group
from tests.api.codec.group_strategies import groups
from tests.api.codec.test_json_agreement import KEY, REFUSALS, anything_like, decoded
from tests.examples import examples


@pytest.fixture(autouse=True, params=[4, 64])
def chunk_bytes(request, monkeypatch):
    monkeypatch.setattr(json_pieces, "CHUNK_BYTES", request.param)


def large(body, key=None):
    try:
        return _large_group(bytearray(body), key)
    except REFUSALS:
        return None


def agrees(body, key):
    """Whether the parser in pieces accepts; if so, the full decoder must say the same."""
    quick = large(body, key)
    if quick is None:
        return False
    full = _decoded_group(body, key)
    assert decoded(bytes(quick.payload)) == decoded(full.payload)
    assert set(msgspec.json.decode(bytes(quick.payload))) >= set(json.loads(full.payload))
    # Facts of the tokens of a large group are left to the index.
    assert [one.reward for one in quick.facts.rows] == [one.reward for one in full.facts.rows]
    left_out = {"payload": b"", "digest": b"", "facts": None}
    assert replace(quick, **left_out) == replace(full, **left_out)
    return True


@examples(100)
@given(st.data(), groups(), KEY)
def test_valid_groups_are_accepted(data, group, key):
    assume(not any(abs(s) >= 2**64 for s in group["scores"]))
    assume(group.get("advantages") is None or all(group["advantages"]))
    assert agrees(json.dumps(group).encode(), key)


@pytest.mark.parametrize("body", [b'{,"tokens":', b'{1"tokens":', b'{{},"tokens":'])
def test_nothing_but_blanks_stands_before_the_first_member(body):
    rest = b'[[0]],"masks":[[0]],"scores":[1]}'
    assert large(body + rest) is None and large(b'{ "tokens":' + rest) is not None


@examples(200)
@given(st.data(), groups(), KEY)
def test_what_is_accepted_is_what_the_full_decoder_accepts(data, group, key):
    agrees(anything_like(data, group), key)
