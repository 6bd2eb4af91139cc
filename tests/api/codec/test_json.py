"""Intake of JSON groups: the stored file, its delivery as JSON, and cases of the full decoder."""

from __future__ import annotations

import json

import pytest

from atroposlib.api.codec import read_group, read_groups
from atroposlib.api.codec.delivery import json_of
from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.codec.json_group import KEYS
from atroposlib.api.codec.json_text import split_list
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import is_zstd, unpack_group
from atroposlib.wire.safetensors import MalformedBody

GROUP = {"tokens": [[1, 5, 9], [2, 7]], "masks": [[-100, 5, 9], [-100, 7]], "scores": [1.0, 0]}
BODY = b'{"tokens":[[1]],"masks":[[1]],"scores":[0.50]}'


def read(group, key=None) -> ParsedGroup:
    body = group if isinstance(group, bytes) else json.dumps(group).encode()
    return read_group(body, "application/json", key)


def delivered(got: ParsedGroup):
    """The stored group as JSON."""
    return json.loads(b"".join(json_of(got.payload)))


def test_a_group_is_stored_as_a_file_and_delivered_with_every_key():
    got = read(b' \n{"scores" : [0.50],"tokens":[[1]],"masks":[[1]] ,"env_id":2}\n')
    assert unpack_group(got.payload).env_id == 2
    group = delivered(got)
    assert list(group) == list(KEYS) and group["advantages"] is None
    assert (group["scores"], group["tokens"], group["env_id"]) == ([0.5], [[1]], 2)


def test_equal_groups_have_equal_payloads_however_they_are_written():
    for text in (
        BODY,
        b" " + BODY,
        BODY.replace(b",", b" , "),
        BODY.replace(b"0.50", b"5e-1"),
    ):
        assert read(text).payload == read(BODY).payload
        assert read(text).digest == read(BODY).digest


def test_a_large_group_is_compressed_and_a_small_one_is_not():
    tokens = [[7] * 20_000]
    large = read({"tokens": tokens, "masks": tokens, "scores": [1.0]})
    assert is_zstd(large.payload) and not is_zstd(read(BODY).payload)
    assert len(large.payload) < 1000 and unpack_group(large.payload).tokens == tokens


def test_the_fields_of_the_queue_are_extracted():
    more = {
        "env_id": 4,
        "idempotency_key": "k",
        "versions": [[-1, 8, 7], [-1, 9]],
        "group_overrides": {"group_size": 6},
    }
    got = read(GROUP | more)
    assert (got.n_seq, got.n_tokens, got.env, got.key) == (2, 3, 4, "k")
    assert (got.version, got.declared_size, got.marks) == (7, 6, ())
    assert got.posted_as == "json"
    bare = read(
        GROUP | {"versions": [[-1] * 3, [-1] * 2], "group_overrides": {"group_size": 2.0}}
    )
    assert (bare.env, bare.key, bare.version, bare.declared_size) == (
        None,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("given", [{}, {"idempotency_key": None}])
def test_the_idempotency_key_of_the_header_is_written_into_the_group(given):
    got = read(GROUP | given, key='k"1')
    assert got.key == delivered(got)["idempotency_key"] == 'k"1'
    assert read(GROUP | {"idempotency_key": "own"}, key="header").key == "own"


@pytest.mark.parametrize("given", [{}, {"marks": None}, {"marks": ["made up"]}])
@pytest.mark.parametrize("advantages", [[], [[1.0]], [[1.0], [2.0]], [[1.0, 2.0, 3.0], []]])
def test_advantages_of_another_length_are_marked_and_kept(given, advantages):
    got = read(GROUP | given | {"advantages": advantages})
    assert got.marks == ("advantages_length",)
    assert delivered(got)["marks"] == ["advantages_length"]
    assert delivered(got)["advantages"] == advantages


def test_marks_set_by_a_client_are_removed():
    got = read(GROUP | {"marks": ["made up"], "advantages": [[0.5] * 3, [0.5] * 2]})
    assert got.marks == () and delivered(got)["marks"] is None


@pytest.mark.parametrize("marks", [[None], {}, "made up"])
def test_marks_of_another_type_are_refused(marks):
    with pytest.raises(InvalidGroup, match="marks"):
        read(GROUP | {"marks": marks})


def test_type_slips_that_the_original_accepted_are_accepted():
    loose = {
        "tokens": [[1.0, 5, 9], [2, 7]],
        "scores": [True, 0],
        "versions": [[-1, 2.0, 3]] * 1,
    }
    got = read(GROUP | loose | {"versions": [[-1, 2.0, 3], [-1, 4]], "unknown": [1]})
    assert got.version == 2 and got.n_tokens == 3
    assert delivered(got)["scores"] == [1.0, 0.0]
    assert delivered(got)["tokens"][0] == [1, 5, 9]
    assert "unknown" not in delivered(got)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (BODY.replace(b"[[1]],", b"[[1,[1]]],", 1), "tokens"),
        (BODY.replace(b"0.50", b"NaN"), "scores[0]: not a finite number"),
        (BODY.replace(b"0.50", b"1e999"), "scores[0]"),
        (BODY.replace(b"[[1]],", b"[[2147483648]],", 1), "tokens[0]"),
        (BODY.replace(b"[[1]],", b"[[-1]],", 1), "tokens[0]"),
        (BODY.replace(b'ks":[[1]]', b'ks":[[-2147483649]]'), "masks[0]"),
        (BODY.replace(b"}", b',"versions":[[-2]]}'), "versions[0]"),
        (BODY.replace(b"}", b',"metadata":{"secret":NaN}}'), "metadata: not a finite"),
        (BODY.replace(b"}", b',"outcomes":["secret"]}'), "Not an allowed value"),
        (
            BODY.replace(b"}", b',"distill_token_ids":[[[1]]],"distill_logprobs":[[[]]]}'),
            "distill_logprobs[0][0]",
        ),
        (
            BODY.replace(b"}", b',"distill_token_ids":[[[2147483648]]]}'),
            "distill_token_ids[0]",
        ),
    ],
)
def test_a_validation_error_names_the_field_and_never_the_value(body, problem):
    with pytest.raises(InvalidGroup) as refusal:
        read(body)
    assert problem in str(refusal.value) and len(str(refusal.value)) < 600
    assert "secret" not in str(refusal.value)
    with pytest.raises(InvalidGroup, match=r"\[1\]\."):
        read_groups(b"[" + BODY + b", " + body + b"]", "application/json")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        BODY[:-1],
        BODY + b"x",
        b"\xef\xbb\xbf" + BODY,
        b'{"images":' + b"[" * 10**5,
        b"\xff",
    ],
)
def test_invalid_json_is_malformed(body):
    with pytest.raises(MalformedBody):
        read(body)
    with pytest.raises((MalformedBody, InvalidGroup)):
        read_groups(b"[" + body + b"]" if body else b"", "application/json")


def test_brackets_and_quotes_inside_strings_are_ignored():
    text = 'a[b]"{\\u00e9}\\'
    group = GROUP | {"group_id": text, "metadata": {text: [text, [[]]]}, "images": text}
    assert delivered(read(group))["metadata"] == group["metadata"]
    body = json.dumps([group, GROUP, group]).encode()
    assert [json.loads(one) for one in split_list([body])] == [group, GROUP, group]
    assert list(split_list([b'[{"a":"\\"{"},{}]'])) == [b'{"a":"\\"{"}', b"{}"]
    listed = read_groups(body, "")
    assert [delivered(group)["group_id"] for group in listed] == [text, None, text]


def test_groups_of_a_list_are_those_that_are_posted_alone():
    first, second = read_groups(b" [" + BODY + b" , \n" + BODY + b"]\n", "application/json")
    assert first.payload == second.payload == read(BODY).payload
    assert read_groups(b"[]", "") == []


def test_integers_beyond_64_bits_and_floats_beyond_float32_are_kept():
    metadata = {"large": 10**30, "text": "\u20ac"}
    numbers = {"scores": [2**70, -0.0], "ref_logprobs": [[0.1, 1e300, 0], [-0.5, 5e-324]]}
    got = delivered(read(GROUP | numbers | {"metadata": metadata, "incarnation": 10**20}))
    assert (got["metadata"], got["incarnation"]) == (metadata, 10**20)
    assert got["scores"] == [float(2**70), 0.0] and str(got["scores"][1]) == "-0.0"
    assert got["ref_logprobs"] == numbers["ref_logprobs"]


def test_an_empty_list_in_an_optional_field_counts_as_absent():
    optional = ("ref_logprobs", "inference_logprobs", "messages", "overrides")
    got = read(GROUP | {name: [] for name in optional})
    group = delivered(got)
    assert [group[name] for name in optional] == [None] * len(optional)
