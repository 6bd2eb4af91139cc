"""What the clients of the rollout API share: requests, answers and patience. No I/O."""

from __future__ import annotations

import logging
import random
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from pydantic import BaseModel

from atroposlib.errors import (
    ConfigError,
    Fenced,
    KeyConflict,
    NotRegistered,
    RolloutApiRefused,
    RolloutApiUnavailable,
    UnknownEnv,
)
from atroposlib.wire import EnvRegistered, ScoredData

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0  # an API that came back waits no longer than this for its clients
_WORTH_GZIP_BYTES = 1024
_LOCAL = ("localhost", "127.0.0.1", "::1")

Group = ScoredData | dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One request, ready to be sent any number of times."""

    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None  # None: the client's own


def call_to(method: str, path: str, body: BaseModel | None = None, **more: Any) -> Call:
    if body is None:
        return Call(method, path, **more)
    headers = {"content-type": "application/json"}
    return Call(method, path, body.model_dump_json().encode(), headers, **more)


_ERRORS_409: dict[str, type[Exception]] = {
    "not_registered": NotRegistered,
    "key_conflict": KeyConflict,
}


def answer(response: httpx.Response) -> bytes:
    """The body of a success.

    Raises:
        UnknownEnv, Fenced, NotRegistered, KeyConflict: the API says so.
        RolloutApiRefused: any other status that is not a success.
    """
    if response.is_success:
        return response.content
    status, detail = status_and_detail(response)
    if response.status_code == 404 and status == "unknown_env":
        raise UnknownEnv(detail)
    if response.status_code == 409:
        raise _ERRORS_409.get(status, Fenced)(detail)
    raise RolloutApiRefused(response.status_code, detail)


def status_and_detail(response: httpx.Response) -> tuple[str, str]:
    try:
        body = msgspec.json.decode(response.content, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "", response.text[:500]
    return str(body.get("status", "")), str(body.get("detail", ""))[:500]


def as_dict(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


def as_joined(body: bytes) -> EnvRegistered | None:
    return EnvRegistered.model_validate_json(body) if b'"env_id"' in body else None


def scored_data_list(
    groups: Sequence[Group], keys: Sequence[str], run_id: str | None, compress: bool
) -> Call:
    """The groups as one request. Each keeps its own key, or gets one of ``keys``."""
    items = [_with_key(group, key) for group, key in zip(groups, keys)]
    body = msgspec.json.encode(items, enc_hook=_plain)
    headers = {"content-type": "application/json"}
    if run_id is not None:
        headers["x-atropos-run-id"] = run_id
    if compress and len(body) >= _WORTH_GZIP_BYTES:
        packer = zlib.compressobj(level=1, wbits=31)
        packed = packer.compress(body) + packer.flush()
        if len(packed) < len(body):
            body = packed
            headers["content-encoding"] = "gzip"
    return Call("POST", "/scored_data_list", body, headers)


def _with_key(group: Group, key: str) -> dict[str, Any]:
    """A copy: the caller's group stays as it is."""
    fields = dict(group) if isinstance(group, dict) else msgspec.structs.asdict(group)
    if fields.get("idempotency_key") is None:
        fields["idempotency_key"] = key
    return fields


def _plain(value: Any) -> Any:
    """Arrays and numbers of numpy or torch, without importing either."""
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(f"{type(value).__name__} has no place in a scored group")
    return to_list()


class Patience:
    """The pauses of one call: growing, jittered, bounded, announced."""

    def __init__(self, url: str, give_up_after_s: float, on_wait: Callable[[str], None]):
        self._url = url
        self._limit_s = give_up_after_s
        self._on_wait = on_wait
        self._since = time.monotonic()
        self._pause_s = FIRST_PAUSE_S

    def pause_after(self, problem: str) -> float:
        """Seconds to wait before the next try.

        Raises:
            RolloutApiUnavailable: the bound of the wait is reached.
        """
        waited = time.monotonic() - self._since
        if waited >= self._limit_s:
            raise RolloutApiUnavailable(
                f"rollout API at {self._url}: {problem}; gave up after {waited:.0f} s"
            )
        self._on_wait(
            f"waiting for rollout API at {self._url}: {problem}, "
            f"{waited:.0f} s of at most {self._limit_s:.0f} s"
        )
        pause = min(self._pause_s, self._limit_s - waited) * random.uniform(0.5, 1.0)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        return pause


def problem_of(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.ConnectError):
        return "connection refused" if "refused" in str(error).lower() else str(error)
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


def _log_wait(message: str) -> None:
    log.warning(message)


class Settings:
    """What both clients keep. Proxies of the environment are not used: with one set, a
    call to localhost would leave the machine."""

    def __init__(
        self,
        base_url: str,
        timeout_s: float,
        give_up_after_s: float,
        on_wait: Callable[[str], None] | None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{base_url!r} is no URL of a rollout API, such as http://host:8000"
            )
        self.url = base_url.rstrip("/")
        self.local = parts.hostname in _LOCAL
        self.timeout_s = timeout_s
        self.give_up_after_s = give_up_after_s
        self.on_wait = on_wait or _log_wait

    def patience(self) -> Patience:
        return Patience(self.url, self.give_up_after_s, self.on_wait)

    def arguments(self, call: Call) -> dict[str, Any]:
        return {
            "method": call.method,
            "url": self.url + call.path,
            "content": call.body,
            "headers": call.headers,
            "timeout": self.timeout_s if call.timeout_s is None else call.timeout_s,
        }
