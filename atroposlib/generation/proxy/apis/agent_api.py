"""Base of the APIs that agents call: replies, server-sent events, errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
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
from atroposlib.generation.proxy.apis.exchange import (
    ApiBody,
    Json,
    SamplingRequest,
    SamplingResponse,
    parse_body,
)

B = TypeVar("B", bound=ApiBody)

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


class ApiSession(Protocol):
    """The part of a proxy session that an API uses."""

    managed: Any  # the managed session, with the nodes of each completion
    conversations: dict[str, list[Json]]  # conversations of the Responses API, by response id


class AgentApi(ABC, Generic[B]):
    """A request of an API: reads the body, writes the reply or the stream.

    The constructor raises InferenceRefused (400) for a body that is no request of this API or
    has a field, message or tool that is not served, and ConfigError for content besides text.
    """

    body_type: type[B]
    rejected_fields: ClassVar[tuple[str, ...]] = ()
    keep_alive = b": still sampling\n\n"

    def __init__(self, session: ApiSession, raw: Json) -> None:
        self.session = session
        self.body = parse_body(raw, self.body_type)
        self.stream = bool(self.body.stream)
        for name in self.rejected_fields:
            if raw.get(name):
                raise InferenceRefused(400, f"{name}: not served")
        self.request = self.read(raw)

    @abstractmethod
    def read(self, raw: Json) -> SamplingRequest:
        """The common form of the request: ``body``, and the fields of ``raw`` not in it."""

    @abstractmethod
    def reply(self, response: SamplingResponse) -> Json:
        """The reply without streaming."""

    @abstractmethod
    def frames(self, response: SamplingResponse) -> Iterator[bytes]:
        """The reply as server-sent events."""

    def error_frame(self, status: int, message: str) -> bytes:
        """An error as a frame of a stream that has begun."""
        return data_frame(openai_body(status, message))


def data_frame(event: Json) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(event)


def event_frame(event: Json) -> bytes:
    return b"event: %b\n%b" % (event["type"].encode(), data_frame(event))


# --- errors ---


def status_of(error: Exception) -> int:
    """HTTP status of an error: 500, which clients retry, unless the caller caused it.

    A 4xx of the inference server is passed on, because a retry of the same request cannot
    succeed.
    """
    if isinstance(error, RolloutError) and isinstance(error.__cause__, TemplateError):
        return 400  # the model's chat template rejects the messages
    if isinstance(error, InferenceRefused):
        return error.status_code
    return next((n for kind, n in _STATUS_OF.items() if isinstance(error, kind)), 500)


def error_text(error: Exception) -> str:
    return error.detail if isinstance(error, InferenceRefused) else str(error)


def openai_body(status: int, message: str, code: str | None = None) -> Json:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": message,
            "type": _OPENAI_TYPES.get(status, kind),
            "param": None,
            "code": code or status,
        }
    }


def anthropic_body(status: int, message: str) -> Json:
    kind = "api_error" if status >= 500 else "invalid_request_error"
    named = {"type": _ANTHROPIC_TYPES.get(status, kind), "message": message}
    return {"type": "error", "error": named}
