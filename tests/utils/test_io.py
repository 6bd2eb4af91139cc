"""JSON bodies of HTTP responses, and the log of failures."""

from __future__ import annotations

import pytest

from atroposlib.utils.io import parse_http_response


async def test_a_failed_http_response_is_logged_with_its_body_and_raised(caplog):
    class Response:
        status = 500

        def raise_for_status(self):
            raise OSError("bad")

        async def text(self):
            return "the body"

    with pytest.raises(OSError, match="bad"):
        await parse_http_response(Response())
    assert "the body" in caplog.text


async def test_a_body_that_cannot_be_read_does_not_hide_the_bad_status(caplog):
    class Response:
        status = 502

        def raise_for_status(self):
            raise OSError("bad gateway")

        async def text(self):
            raise ConnectionResetError("gone")

    with pytest.raises(OSError, match="bad gateway"):
        await parse_http_response(Response())
    assert "502" in caplog.text and "gone" in caplog.text


async def test_a_successful_http_response_is_returned_as_json():
    class Response:
        def raise_for_status(self):
            pass

        async def json(self):
            return {"a": 1}

    assert await parse_http_response(Response()) == {"a": 1}
