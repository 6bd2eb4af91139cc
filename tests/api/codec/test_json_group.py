"""The JSON parser against the full decoder: it returns the same group, or leaves it to the other."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import assume, given, strategies as st

from atroposlib.api.codec import formats, json_group, json_text, read_group
from atroposlib.api.codec.delivery import json_of
from atroposlib.api.codec.formats import packed_group
from atroposlib.api.codec.json import _columns_of, _decode, read_json_groups
from atroposlib.api.codec.json_group import KEYS, JsonGroup
from atroposlib.errors import InvalidGroup
from atroposlib.wire import ScoredData
from atroposlib.wire.binary import unpack_group
from atroposlib.wire.columns import check_probabilities, require_trainable
from atroposlib.wire.safetensors import MalformedBody
from tests.api.codec.group_strategies import bodies, broken, groups, misshapen
from tests.examples import examples

REFUSALS = (InvalidGroup, MalformedBody)
KEY = st.none() | st.sampled_from(["k", '"[', "é"])
BODY = b'{"tokens":[[1]],"masks":[[1]],"scores":[0.50]}'
RECORD = msgspec.json.Decoder(ScoredData)


FORMS = ("whole", "in chunks", "compressed")


@contextmanager
def reading(form):
    """The body is parsed whole, or in chunks of some bytes, or the arrays are compressed as well."""
    with pytest.MonkeyPatch.context() as patch:
        if form == "in chunks":
            patch.setattr(json_text, "CHUNK_BYTES", 4)
        if form == "compressed":
            patch.setattr(json_text, "CHUNK_BYTES", 64)
            patch.setattr(json_text, "_SHORT_BYTES", 8)
            patch.setattr(json_group, "HELD_BYTES", 0)
        yield


def parsed(body, key=None):
    """The group by the JSON parser alone; None if it refuses."""
    try:
        group = JsonGroup(body, key)
        require_trainable(group)
        check_probabilities(group)
        return packed_group(group)
    except REFUSALS:
        return None


def fully_decoded(body, key=None):
    return packed_group(_columns_of(_decode(body, RECORD), key))


def agrees(body, key):
    """Whether the parser accepts; if so, the full decoder makes the same group of it."""
    group = parsed(body, key)
    if group is None:
        return False
    full = fully_decoded(body, key)
    assert unpack_group(group.payload) == unpack_group(full.payload)
    assert group.facts == full.facts and group.marks == full.marks
    assert (group.key, group.version, group.n_tokens) == (
        full.key,
        full.version,
        full.n_tokens,
    )
    return True


def anything_like(data, group):
    """The group as a body, whole or with damage to its bytes or to its shape."""
    kind = data.draw(st.sampled_from(["whole", "broken", "misshapen"]))
    body = data.draw(bodies(data.draw(misshapen(group)) if kind == "misshapen" else group))
    return data.draw(broken(body)) if kind == "broken" else body


@examples(100)
@given(st.sampled_from(FORMS), groups(), KEY)
def test_a_valid_group_is_accepted_without_the_full_decoder(form, group, key):
    assume(group.get("advantages") is None or all(group["advantages"]))
    with reading(form):
        assert agrees(json.dumps(group).encode(), key)


@examples(300)
@given(st.sampled_from(FORMS), st.data(), groups(), KEY)
def test_what_is_accepted_is_what_the_full_decoder_accepts(form, data, group, key):
    body = anything_like(data, group)
    with reading(form):
        agrees(body, key)


@pytest.mark.slow
@examples(1500)
@given(st.sampled_from(FORMS), st.data(), groups(), KEY)
def test_both_parsers_agree_on_many_random_groups(form, data, group, key):
    body = anything_like(data, group)
    with reading(form):
        agrees(body, key)


@examples(60)
@given(st.data(), st.lists(groups(), min_size=1, max_size=3))
def test_a_list_is_parsed_like_its_groups_one_by_one(data, some):
    """Broken or not; the reference decodes the whole list at once."""
    body = data.draw(bodies(some))
    if data.draw(st.booleans()):
        body = data.draw(broken(body))
    try:
        texts = msgspec.json.decode(body, type=list[msgspec.Raw])
        body.decode()
        full = [fully_decoded(bytes(text)) for text in texts]
    except (*REFUSALS, ValueError, RecursionError):
        full = None
    try:
        groups_of_list = read_json_groups(body)
    except REFUSALS:
        groups_of_list = None
    assert (groups_of_list is None) == (full is None), body
    for group, alone in zip(groups_of_list or [], full or []):
        assert unpack_group(group.payload) == unpack_group(alone.payload)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "body",
    [
        BODY.replace(b"}", b',"tokens":[[2]]}'),  # twice the same key
        BODY.replace(b"}", b',"env_id":1,"env_id":2}'),
        b"\xef\xbb\xbf" + BODY,
        b'{"tokens":[[3,[4]]],"masks":[[3,4]],"scores":[1]}',
        b'{"tokens":[[3,[4]]],"masks":[[3,4]],"scores":[1],"group_id":"\\u005b"}',
        b'{"tokens":[[3,[4]],[5]],"masks":[[3,4],5],"scores":[1,1]}',
        b'{"tokens":{"a":[1]},"masks":[[1]],"scores":[1]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":{"a":1}}',
        b'{"tokens":[[true]],"masks":[[1]],"scores":[1]}',
        BODY.replace(b"}", b',"env_id":true}'),
        BODY.replace(b"}", b',"unknown":nul}'),
        b'{,"tokens":[[0]],"masks":[[0]],"scores":[1]}',
        b'{1"tokens":[[0]],"masks":[[0]],"scores":[1]}',
        b'{{},"tokens":[[0]],"masks":[[0]],"scores":[1]}',
    ],
)
def test_a_text_that_the_parser_cannot_prove_is_left_to_the_full_decoder(form, body):
    with reading(form):
        assert parsed(body) is None


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_key_is_ignored_but_has_to_be_json(form):
    with reading(form):
        assert agrees(BODY.replace(b"}", b',"unknown":[{"a":"]"},1]}'), None)
        assert parsed(BODY.replace(b"}", b',"unknown":[1,]}')) is None


def test_a_refused_text_leaves_the_parser_of_its_thread_usable():
    for _ in range(3):
        with pytest.raises(InvalidGroup) as refusal:
            read_group(BODY.replace(b"[[1]],", b"[[1],2],", 1), "application/json")
        assert parsed(BODY) is not None, refusal
    groups_of_thread = []
    thread = threading.Thread(target=lambda: groups_of_thread.append(parsed(BODY)))
    thread.start()
    thread.join()
    assert groups_of_thread[0] is not None


def test_arrays_outlive_the_next_parse():
    group = JsonGroup(BODY)
    for i in range(5):
        JsonGroup(BODY.replace(b"[[1]]", b"[[%d]]" % i))
    assert [chunk.tolist() for chunk in group.chunks("tokens")] == [[1]]


def test_a_body_that_is_refused_names_the_row_if_it_is_large(monkeypatch):
    monkeypatch.setattr("atroposlib.api.codec.json.WHOLE_BYTES", 0)
    bad = b'{"tokens":[[1],[2147483648]],"masks":[[1],[1]],"scores":[0,0]}'
    with pytest.raises(InvalidGroup, match=r"tokens\[1\]"):
        read_group(bad, "application/json")


def test_a_group_whose_arrays_exceed_a_file_is_refused(monkeypatch):
    monkeypatch.setattr(formats, "MAX_GROUP_BYTES", 100)
    with pytest.raises(InvalidGroup, match="its arrays take"):
        read_group(BODY, "application/json")


@examples(150)
@given(st.sampled_from(FORMS), groups(), KEY)
def test_a_stored_group_is_delivered_as_json_value_for_value(form, group, key):
    body = json.dumps(group).encode()
    expected = json.loads(msgspec.json.encode(_decode(body, RECORD)))
    with reading(form):
        stored = read_group(body, "application/json", key)
    delivered = json.loads(b"".join(json_of(stored.payload)))
    assert list(delivered) == list(KEYS)
    for name in ("messages", "overrides", "sampling", "finish_reasons", "outcomes"):
        expected[name] = expected[name] or None  # [] of a field with an entry per row
    expected["marks"] = list(stored.marks) or None
    expected["idempotency_key"] = stored.key
    assert delivered == expected
