"""What an error looks like to an agent: a status, and a body in the shape its client reads."""

from __future__ import annotations

from typing import Any

from jinja2.exceptions import TemplateError

from atroposlib.errors import (
    AtroposError,
    ConfigError,
    Forbidden,
    InferenceRefused,
    KeyConflict,
    RolloutError,
    Unauthorized,
    UnknownSession,
)

Json = dict[str, Any]

_STATUS_OF: dict[type[AtroposError], int] = {
    UnknownSession: 404,
    Unauthorized: 401,
    Forbidden: 403,
    KeyConflict: 409,
    ConfigError: 400,
}
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def status_of(error: Exception) -> int:
    """500 for whatever is not the caller's doing: clients of both APIs try that again.

    An inference server's own 4xx stands, because sending the same again cannot help.
    """
    if isinstance(error, RolloutError) and isinstance(error.__cause__, TemplateError):
        return 400  # messages that the model's chat template refuses
    if isinstance(error, InferenceRefused):
        return error.status_code
    return next((n for kind, n in _STATUS_OF.items() if isinstance(error, kind)), 500)


def message_of(error: Exception) -> str:
    return error.detail if isinstance(error, InferenceRefused) else str(error)


def openai_body(status: int, message: str) -> Json:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": message,
            "type": _OPENAI_TYPES.get(status, kind),
            "param": None,
            "code": status,
        }
    }


def anthropic_body(status: int, message: str) -> Json:
    kind = "api_error" if status >= 500 else "invalid_request_error"
    named = {"type": _ANTHROPIC_TYPES.get(status, kind), "message": message}
    return {"type": "error", "error": named}
