"""Call of the rollout API: its request, and the meaning of its answer. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel

from atroposlib.errors import (
    Forbidden,
    KeyConflict,
    NotRegistered,
    RolloutApiRefused,
    StaleGeneration,
    Unauthorized,
    UnknownEnv,
)
from atroposlib.wire import Heartbeat

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

BEST_EFFORT_TIMEOUT_S = 2.0
JSON_BODY = {"content-type": "application/json"}
_MAX_DETAIL_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class RetryLater:
    """No usable answer: send the same request again after at least ``at_least_s`` seconds."""

    problem: str
    at_least_s: float = 0.0


@dataclass(frozen=True)
class ApiCall(Generic[T]):
    """One request, to be sent any number of times, and the parser of its answer."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]  # ValueError: the body breaks the protocol
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None  # None: the client's own


def post(
    path: str,
    body: BaseModel | None,
    read: Callable[[httpx.Response], T],
    timeout_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> ApiCall[T]:
    """The call of a route that takes a message, or no body."""
    content = b"" if body is None else body.model_dump_json().encode()
    named = JSON_BODY if content else {}
    return ApiCall("POST", path, read, content, named | (headers or {}), timeout_s)


def heartbeat(beat: Heartbeat) -> ApiCall[None]:
    return post("/heartbeat", beat, nothing, BEST_EFFORT_TIMEOUT_S)


# --- parsers of answers ---------------------------------------------------------------------


def model(kind: type[M]) -> Callable[[httpx.Response], M]:
    return lambda response: kind.model_validate_json(response.content)


def mapping(response: httpx.Response) -> dict[str, Any]:
    return msgspec.json.decode(response.content, type=dict[str, Any])


def nothing(response: httpx.Response) -> None:
    return None


def interpret(call: ApiCall[T], response: httpx.Response) -> T | RetryLater:
    """The parsed answer, or RetryLater.

    Raises:
        UnknownEnv, StaleGeneration, NotRegistered, KeyConflict, Unauthorized, Forbidden:
            reported by the API.
        RolloutApiRefused: any other answer that a retry cannot change.
    """
    code = response.status_code
    if code in (408, 429) or code >= 500:  # 408: a slow network, not a bad group
        _, detail = status_and_detail(response)
        asked = response.headers.get("retry-after", "") if code == 429 else ""
        at_least_s = float(asked) if asked.isascii() and asked.isdecimal() else 0.0
        return RetryLater(f"HTTP {code} {detail}".rstrip(), at_least_s)
    if not response.is_success:
        raise refusal_of(response)
    try:
        return call.read(response)
    except ValueError as error:
        problem = f"its answer to {call.path} is not one of a rollout API"
        raise RolloutApiRefused(code, problem) from error


def refusal_of(response: httpx.Response) -> Exception:
    """The error of an answer with 3xx or 4xx."""
    code = response.status_code
    status, detail = status_and_detail(response)
    if code == 401:
        return Unauthorized(f"{detail}: set ATROPOS_API_TOKEN, or pass a token")
    if code == 403:
        return Forbidden(detail)
    if code == 404 and status == "unknown_env":
        return UnknownEnv(detail)
    if code == 409:
        if status == "key_conflict":
            return KeyConflict(detail)
        if status == "not_registered":
            return NotRegistered(f"{detail} (the run was reset, or never began)")
        return StaleGeneration(f"{detail}: stop, or register again to take the run over")
    if response.is_redirect:
        detail = "it answers with a redirect, which is not followed: use the final URL"
    return RolloutApiRefused(code, detail)


def status_and_detail(response: httpx.Response) -> tuple[str, str]:
    try:
        body = mapping(response)
    except ValueError:
        return "", response.text[:_MAX_DETAIL_CHARACTERS]
    detail = str(body.get("detail", ""))[:_MAX_DETAIL_CHARACTERS]
    return str(body.get("status", "")), detail
