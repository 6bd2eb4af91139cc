"""Intake of JSON groups: stored bytes, and cases that the fast path does not handle."""

from __future__ import annotations

import json

import msgspec
import pytest

from atroposlib.api.codec import json as intake_json
from atroposlib.api.codec import read_group, read_groups
from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.codec.json_columns import KEYS, parse_columns
from atroposlib.api.codec.json_pieces import split_list
from atroposlib.api.common.records import Media
from atroposlib.errors import InvalidGroup
from atroposlib.wire import ScoredData
from atroposlib.wire.safetensors import MalformedBody

GROUP = {"tokens": [[1, 5, 9], [2, 7]], "masks": [[-100, 5, 9], [-100, 7]], "scores": [1.0, 0]}
BODY = b'{"tokens":[[1]],"masks":[[1]],"scores":[0.50]}'


def read(group, key=None) -> ParsedGroup:
    body = group if isinstance(group, bytes) else json.dumps(group).encode()
    return read_group(body, "application/json", key)


def test_the_received_bytes_are_kept_and_missing_keys_are_added():
    kept = read(b' \n{"scores" : [0.50],"tokens":[[1]],"masks":[[1]] ,"env_id":2}\n').payload
    assert kept.startswith(b' \n{"scores" : [0.50],"tokens":[[1]],"masks":[[1]] ,"env_id":2,')
    decoded = json.loads(kept)
    assert set(decoded) == set(KEYS) and decoded["advantages"] is None


def test_a_group_with_every_key_is_kept_as_it_is():
    whole = read(BODY).payload
    assert read(whole).payload is whole


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
    assert got.media is Media.JSON
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
    assert got.key == json.loads(got.payload)["idempotency_key"] == 'k"1'
    assert got.payload.count(b"idempotency_key") == 1
    assert read(GROUP | {"idempotency_key": "own"}, key="header").key == "own"


@pytest.mark.parametrize("given", [{}, {"marks": None}, {"marks": ["made up"]}])
@pytest.mark.parametrize("advantages", [[], [[1.0]], [[1.0], [2.0]], [[1.0, 2.0, 3.0], []]])
def test_advantages_of_another_length_are_marked_and_kept(given, advantages):
    got = read(GROUP | given | {"advantages": advantages})
    assert got.marks == ("advantages_length",)
    assert json.loads(got.payload)["marks"] == ["advantages_length"]
    assert json.loads(got.payload)["advantages"] == advantages


def test_marks_set_by_a_client_are_removed():
    got = read(GROUP | {"marks": ["made up"], "advantages": [[0.5] * 3, [0.5] * 2]})
    assert got.marks == () and json.loads(got.payload)["marks"] is None


def test_type_slips_that_the_original_accepted_are_accepted():
    loose = {
        "tokens": [[1.0, 5, 9], [2, 7]],
        "scores": [True, 0],
        "versions": [[-1, 2.0, 3]] * 1,
    }
    got = read(GROUP | loose | {"versions": [[-1, 2.0, 3], [-1, 4]], "unknown": [1]})
    assert got.version == 2 and got.n_tokens == 3
    assert json.loads(got.payload)["scores"] == [1.0, 0.0]
    assert json.loads(got.payload)["tokens"][0] == [1, 5, 9]
    assert "unknown" not in json.loads(got.payload)


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
    assert parse_columns(json.dumps(group).encode()) is not None
    body = json.dumps([group, GROUP, group]).encode()
    assert [json.loads(one) for one in split_list([body])] == [group, GROUP, group]
    assert list(split_list([b'[{"a":"\\"{"},{}]'])) == [b'{"a":"\\"{"}', b"{}"]
    listed = read_groups(body, "")
    assert [json.loads(one.payload)["group_id"] for one in listed] == [text, None, text]


def test_groups_of_a_list_keep_their_own_bytes():
    first, second = read_groups(b" [" + BODY + b" , \n" + BODY + b"]\n", "application/json")
    assert first.payload == second.payload == read(BODY).payload
    assert read_groups(b"[]", "") == []


def test_valid_groups_take_the_fast_path(monkeypatch):
    monkeypatch.setattr(intake_json, "_decoded_group", None)
    messages = [[{"role": "user", "content": "é\n"}], []]
    group = GROUP | {"messages": messages, "inference_logprobs": [[1.0, -1, -2], [1.0, -0.5]]}
    assert msgspec.json.decode(read(group).payload, type=ScoredData).messages == messages


def test_an_empty_list_in_an_optional_field_counts_as_absent():
    optional = ("ref_logprobs", "inference_logprobs", "messages", "overrides")
    got = read(GROUP | {name: [] for name in optional})
    payload = json.loads(got.payload)
    assert [payload[name] for name in optional] == [None] * len(optional)
