"""Bodies of responses: gzip, errors and their bounded details."""

from __future__ import annotations

import gzip

import pytest
from starlette.requests import Request

from atroposlib.api.web.errors_http import STATUS_OF, error_response
from atroposlib.api.web.routes import of_bytes
from atroposlib.errors import StaleGeneration, StoreFull, Unauthorized, UnknownEnv


def request(accept: str) -> Request:
    headers = [(b"accept-encoding", accept.encode())]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("size", "accept", "packed"),
    [
        (999, "gzip", False),
        (1000, "gzip", True),
        (1000, "br", False),
        (2**20 - 1, "br, gzip", True),
        (2**20, "gzip", False),
    ],
)
def test_json_is_compressed_where_that_is_cheap_and_accepted(size, accept, packed):
    body = b"x" * size
    response = of_bytes(body, request(accept))
    assert (response.headers.get("content-encoding") == "gzip") == packed
    assert (gzip.decompress(response.body) if packed else response.body) == body


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (UnknownEnv("no env 7"), 404, "unknown_env"),
        (StaleGeneration("replaced"), 409, "fenced"),
        (StoreFull("full"), 503, "store_full"),
        (Unauthorized("no token"), 401, "unauthorized"),
    ],
)
def test_an_error_has_its_status_and_code(error, code, word):
    response = error_response(error)
    assert response.status_code == code == STATUS_OF[type(error)][0]
    assert response.body == f'{{"detail":"{error}","status":"{word}"}}'.encode()
    assert ("retry-after" in response.headers) == (code == 503)
    assert ("www-authenticate" in response.headers) == (code == 401)


def test_an_error_detail_is_truncated_by_its_encoded_size():
    response = error_response(UnknownEnv("\0" * 5000))  # each takes six bytes as JSON
    assert len(response.body) < 1000
