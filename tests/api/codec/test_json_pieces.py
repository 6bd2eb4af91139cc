"""Large JSON bodies, parsed in pieces, against the full decoder."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atroposlib.api.codec import json_pieces
from atroposlib.api.codec.json import _decoded_group, _large_group
from atroposlib.api.codec.json_columns import LargeGroup
from atroposlib.wire.columns import to_group
from tests.api.codec.group_strategies import groups
from tests.api.codec.test_json_agreement import KEY, REFUSALS, anything_like, decoded


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
    assert replace(quick, payload=b"", digest=b"") == replace(full, payload=b"", digest=b"")
    return True


@settings(max_examples=100)
@given(st.data(), groups(), KEY)
def test_valid_groups_are_accepted(data, group, key):
    assume(not any(abs(s) >= 2**64 for s in group["scores"]))
    assume(group.get("advantages") is None or all(group["advantages"]))
    assert agrees(json.dumps(group).encode(), key)


@settings(max_examples=200)
@given(st.data(), groups(), KEY)
def test_what_is_accepted_is_what_the_full_decoder_accepts(data, group, key):
    agrees(anything_like(data, group), key)


@settings(max_examples=60)
@given(groups())
def test_the_numbers_that_are_kept_are_those_of_the_group(group):
    payload = _decoded_group(json.dumps(group).encode(), None).payload
    kept = LargeGroup(payload, keep=True)
    assert to_group(kept.columns) == decoded(payload)
