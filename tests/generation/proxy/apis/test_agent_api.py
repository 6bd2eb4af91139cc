"""Errors of the APIs: statuses and bodies."""

from __future__ import annotations

import pytest

from atroposlib.errors import (
    ConfigError,
    Forbidden,
    InferenceError,
    InferenceRefused,
    KeyConflict,
    Unauthorized,
    UnknownSession,
)
from atroposlib.generation.proxy.apis.agent_api import (
    anthropic_body,
    data_frame,
    error_text,
    event_frame,
    openai_body,
    status_of,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownSession("no session"), 404),
        (Unauthorized("no key"), 401),
        (Forbidden("not from here"), 403),
        (KeyConflict("other body"), 409),
        (ConfigError("no such parser"), 400),
        (InferenceRefused(422, "too long"), 422),
        (InferenceError("server failed"), 500),
    ],
)
def test_an_error_has_the_status_of_its_class(error, status):
    assert status_of(error) == status


def test_the_message_of_a_rejection_is_its_detail():
    assert error_text(InferenceRefused(422, "too long")) == "too long"
    assert error_text(ConfigError("no such parser")) == "no such parser"


@pytest.mark.parametrize(
    ("status", "openai_type", "anthropic_type"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (404, "invalid_request_error", "not_found_error"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "server_error", "api_error"),
    ],
)
def test_error_bodies_contain_the_error_types_of_both_vendors(
    status, openai_type, anthropic_type
):
    openai = openai_body(status, "m")["error"]
    assert openai == {"message": "m", "type": openai_type, "param": None, "code": status}
    expected = {"type": "error", "error": {"type": anthropic_type, "message": "m"}}
    assert anthropic_body(status, "m") == expected


def test_stream_frames_are_server_sent_events():
    assert data_frame({"a": 1}) == b'data: {"a":1}\n\n'
    assert event_frame({"type": "ping"}) == b'event: ping\ndata: {"type":"ping"}\n\n'
