"""The fast path of the intake returns the result of the full decoder or falls back to it."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from atroposlib.api.codec.delivery import read_columns
from atroposlib.api.codec.json import _decoded_group, _proven_group, read_json_groups
from atroposlib.api.codec.json_columns import KEYS
from atroposlib.api.common.records import Media, Payload
from atroposlib.errors import InvalidGroup
from atroposlib.wire import ScoredData
from atroposlib.wire.columns import from_group, to_group
from atroposlib.wire.safetensors import MalformedBody
from tests.api.codec.group_strategies import bodies, broken, groups, misshapen
from tests.examples import examples

REFUSALS = (InvalidGroup, MalformedBody)
KEY = st.none() | st.sampled_from(["k", '"[', "é"])


def decoded(payload):
    return msgspec.json.decode(payload, type=ScoredData)


def check_agreement(body, key):
    """Returns whether the fast path spoke."""
    quick = _proven_group(body, key)
    try:
        full = _decoded_group(body, key)
    except REFUSALS:
        assert quick is None
        return False
    if quick is None:
        return False
    assert decoded(quick.payload) == decoded(full.payload)
    assert list(json.loads(quick.payload)).count("tokens") == 1
    assert set(json.loads(quick.payload)) == set(KEYS)
    assert replace(quick, payload=b"", digest=b"") == replace(full, payload=b"", digest=b"")
    return True


@examples(60)
@given(groups(), KEY)
def test_a_valid_group_is_accepted_without_the_full_decoder(group, key):
    body = json.dumps(group)
    assume(not group.get("marks") and group.get("marks", 0) != [])  # these are replaced
    assume("\\u005" not in body and not any(abs(s) >= 2**64 for s in group["scores"]))
    assume(not ("idempotency_key" in group and group["idempotency_key"] is None and key))
    fits = [len(row) for row in group["tokens"]]
    odd = group.get("advantages") is not None and [len(r) for r in group["advantages"]] != fits
    assume(not ("marks" in group and odd))
    assert check_agreement(body.encode(), key)


def anything_like(data, group):
    """The group as a body, whole or with damage to its bytes or to its shape."""
    kind = data.draw(st.sampled_from(["whole", "broken", "misshapen"]))
    body = data.draw(bodies(data.draw(misshapen(group)) if kind == "misshapen" else group))
    return data.draw(broken(body)) if kind == "broken" else body


@examples(200)
@given(st.data(), groups(), KEY)
def test_both_paths_agree_on_damaged_groups(data, group, key):
    check_agreement(anything_like(data, group), key)


@pytest.mark.slow
@examples(1500)
@given(st.data(), groups(), KEY)
def test_both_paths_agree_on_many_random_groups(data, group, key):
    check_agreement(anything_like(data, group), key)


@examples(60)
@given(groups())
def test_a_stored_group_is_the_same_through_either_parser(group):
    """Groups converted for a consumer are parsed by the fast path where possible."""
    payload = _decoded_group(json.dumps(group).encode(), None).payload
    record = decoded(payload)
    assert to_group(read_columns(Payload(payload, Media.JSON))) == record
    assert to_group(from_group(record)) == record


@examples(60)
@given(st.data(), st.lists(groups(), min_size=1, max_size=3))
def test_a_list_is_parsed_like_its_groups_one_by_one(data, some):
    """Broken or not; the reference decodes the whole list at once."""
    body = data.draw(bodies(some))
    if data.draw(st.booleans()):
        body = data.draw(broken(body))
    try:
        full = msgspec.json.decode(body, type=list[msgspec.Raw])
        body.decode()
        full = [_decoded_group(bytes(one), None) for one in full]
    except (*REFUSALS, ValueError, RecursionError):
        full = None
    try:
        quick = read_json_groups(body)
    except REFUSALS:
        quick = None
    if full is None and quick is not None:
        assert False, body
    assert (quick is None) == (full is None)
    for one, other in zip(quick or [], full or []):
        assert decoded(one.payload) == decoded(other.payload)
        assert replace(one, payload=b"", digest=b"") == replace(other, payload=b"", digest=b"")
