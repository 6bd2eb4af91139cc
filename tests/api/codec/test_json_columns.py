"""The fast JSON parser: proofs of shape, lifetime of arrays, reuse of parsers."""

from __future__ import annotations

import threading

import pytest

from atroposlib.api.codec import json_columns, read_group
from atroposlib.api.codec.json_columns import parse_columns
from atroposlib.errors import InvalidGroup

BODY = b'{"tokens":[[1]],"masks":[[1]],"scores":[0.50]}'


@pytest.mark.parametrize(
    "body",
    [
        BODY.replace(b"}", b',"tokens":[[2]]}'),  # twice the same key
        BODY.replace(b"}", b',"env_id":1,"env_id":2}'),
        b"\xef\xbb\xbf" + BODY,
        b'{"tokens":[[3,[4]]],"masks":[[3,4]],"scores":[1]}',
        b'{"tokens":[[3,[4]]],"masks":[[3,4]],"scores":[1],"group_id":"\\u005b"}',
        b'{"tokens":[[3,[4]]],"masks":[[3,4]],"scores":[1],"images":"\\u005B"}',
        b'{"tokens":[[3,[4]],[5]],"masks":[[3,4],5],"scores":[1,1]}',
        b'{"tokens":{"a":[1]},"masks":[[1]],"scores":[1]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":{"a":1}}',
        b'{"tokens":[[true]],"masks":[[1]],"scores":[1]}',
        BODY.replace(b"}", b',"env_id":true}'),
        BODY.replace(b"}", b',"unknown":1}'),
    ],
)
def test_input_that_numeric_columns_cannot_validate_falls_back_to_the_full_decoder(body):
    assert parse_columns(body) is None


def test_a_failed_read_leaves_the_parser_of_its_thread_usable():
    for _ in range(3):
        with pytest.raises(InvalidGroup) as refusal:
            read_group(BODY.replace(b"[[1]],", b"[[-1]],", 1), "application/json")
        assert parse_columns(BODY) is not None, refusal
    found = []
    thread = threading.Thread(target=lambda: found.append(parse_columns(BODY)))
    thread.start()
    thread.join()
    assert found[0] is not None


def test_arrays_outlive_the_next_parse():
    columns, _ = parse_columns(BODY)
    for i in range(5):
        parse_columns(BODY.replace(b"[[1]]", b"[[%d]]" % i))
    assert columns.tokens.tolist() == [1]


def test_large_documents_leave_no_buffers_behind(monkeypatch):
    monkeypatch.setattr(json_columns, "_KEPT_PARSER_BYTES", 10)
    kept = json_columns._OF_THREAD.parser
    document = kept.parse(b"[1]")  # a parser in use refuses: so another one was taken
    assert parse_columns(BODY) is not None
    del document
