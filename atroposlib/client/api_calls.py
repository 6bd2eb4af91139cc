"""Calls of the rollout API: requests, meaning of answers, retries, connection settings. No I/O."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from pydantic import BaseModel

from atroposlib import errors
from atroposlib.utils.backoff import Backoff, uniform, with_jitter
from atroposlib.utils.http.sockets import (
    CONNECT_TIMEOUT_S,
    is_loopback,
    kept_alive,
    start_hint,
)
from atroposlib.wire import Heartbeat, ServerDirectory

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

BEST_EFFORT_TIMEOUT_S = 2.0
JSON_BODY = {"content-type": "application/json"}
TOKEN_VARIABLE = "ATROPOS_API_TOKEN"
BACKOFF = Backoff(0.2, 5.0)  # clients return at most this long after the API does
GIVE_UP_AFTER_S = 1200.0  # outlasts a network that is cut for ten minutes
MAX_RETRY_AFTER_S = 60.0  # maximum of a pause requested by Retry-After
_MAX_DETAIL_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class RetryLater:
    """No usable answer: send the same request again after at least ``at_least_s`` seconds."""

    problem: str
    at_least_s: float = 0.0


@dataclass(frozen=True)
class ApiCall(Generic[T]):
    """Request that may be sent any number of times, and the parser of its answer."""

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


def list_servers() -> ApiCall[ServerDirectory]:
    return ApiCall("GET", "/servers", model(ServerDirectory), timeout_s=BEST_EFFORT_TIMEOUT_S)


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
        RolloutApiRefused: any further answer that a retry cannot change.
    """
    code = response.status_code
    if code in (408, 429) or code >= 500:  # 408: a slow network, not a bad group
        _, detail = status_and_detail(response)
        at_least_s = seconds_asked(response) if code == 429 else 0.0
        return RetryLater(f"HTTP {code} {detail}".rstrip(), at_least_s)
    if not response.is_success:
        raise api_refusal(response)
    try:
        return call.read(response)
    except ValueError as error:
        problem = f"its answer to {call.path} is not one of a rollout API"
        raise errors.RolloutApiRefused(code, problem) from error


def seconds_asked(response: httpx.Response) -> float:
    """Seconds in Retry-After; 0 without the header."""
    header = response.headers.get("retry-after", "")
    known = header.isascii() and header.isdecimal()
    return min(float(header), MAX_RETRY_AFTER_S) if known else 0.0


def api_refusal(response: httpx.Response) -> Exception:
    """The error of an answer with 3xx or 4xx."""
    code = response.status_code
    status, detail = status_and_detail(response)
    if code == 401:
        return errors.Unauthorized(f"{detail}: set ATROPOS_API_TOKEN, or pass a token")
    if code == 403:
        return errors.Forbidden(detail)
    if code == 404 and status == "unknown_env":
        return errors.UnknownEnv(detail)
    if code == 409:
        if status == "key_conflict":
            return errors.KeyConflict(detail)
        if status == "run_taken":
            return errors.RunTaken(detail)
        if status == "cannot_rewind":
            return errors.CannotRewind(detail)
        if status == "not_registered":
            return errors.NotRegistered(f"{detail} (the run was reset, or never began)")
        return errors.StaleGeneration(
            f"{detail}: stop, or register again to take the run over"
        )
    if response.is_redirect:
        detail = "it answers with a redirect, which is not followed: use the final URL"
    return errors.RolloutApiRefused(code, detail)


def status_and_detail(response: httpx.Response) -> tuple[str, str]:
    try:
        body = mapping(response)
    except ValueError:
        return "", response.text[:_MAX_DETAIL_CHARACTERS]
    detail = str(body.get("detail", ""))[:_MAX_DETAIL_CHARACTERS]
    return str(body.get("status", "")), detail


# --- retries and connection ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock (s), blocking pause and jitter of a client; a simulation has its own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    uniform: Callable[[], float] = uniform  # a number in [0, 1)


class RetryPolicy:
    """The pauses of a call: exponential, jittered, bounded, and reported to ``on_wait``.

    ``began`` is the time of the first try on the clock of the settings; None: now.
    """

    def __init__(self, settings: ConnectionSettings, began: float | None = None) -> None:
        self._settings = settings
        self._limit_s = settings.give_up_after_s
        self._on_wait = settings.on_wait
        self._timing = settings.timing
        self._started = self._timing.clock() if began is None else began
        self._failures = 0

    def __enter__(self) -> RetryPolicy:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._failures:
            self._settings.end_wait()

    def pause_after(self, later: RetryLater) -> float:
        """Seconds to wait before the next try; not past the deadline.

        A pause that the API requested has no jitter when it is the longer pause.

        Raises:
            RolloutApiUnavailable: the bound of the wait is reached.
        """
        waited, url = self._timing.clock() - self._started, self._settings.url
        if waited >= self._limit_s:
            raise errors.RolloutApiUnavailable(
                f"rollout API at {url}: {later.problem}; gave up after {waited:.0f} s"
            )
        self._on_wait(
            f"waiting for rollout API at {url}: {later.problem}, "
            f"{waited:.0f} s of at most {self._limit_s:.0f} s"
        )
        self._settings.look_again()
        if not self._failures:
            self._settings.begin_wait()
        self._failures += 1
        own = BACKOFF.pause_s(self._failures)
        floor = min(later.at_least_s, MAX_RETRY_AFTER_S)
        pause = min(max(own, floor), self._limit_s - waited)
        return with_jitter(pause, self._timing.uniform) if own > floor else pause


def connection_problem(error: httpx.RequestError) -> str:
    import httpx  # not above: loading it takes as long as all else an environment imports

    if isinstance(error, httpx.ConnectError):
        refused = "connection refused" if "refused" in str(error).lower() else str(error)
        return f"{refused} ({start_hint('run-api', str(error.request.url))})"
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


class ConnectionSettings:
    """URL, timeouts and token of a client.

    ``base_url`` may be ``file:///path`` of a file that holds the URL: it is read again after a
    call that failed, because an API that is started anew may have another address.

    Proxy variables are ignored: with a proxy set, a call to localhost would leave the machine.
    """

    def __init__(
        self,
        base_url: str,
        timeout_s: float,
        give_up_after_s: float,
        on_wait: Callable[[str], None] | None,
        token: str | None,
        timing: Timing | None = None,
        on_continue: Callable[[], None] = lambda: None,
    ) -> None:
        self.base_url = base_url
        parts = urlsplit(base_url)
        self._file = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self.url = _checked_url(_url_in(self._file, base_url) if self._file else base_url)
        self.local = is_loopback(str(urlsplit(self.url).hostname))
        self.timeout_s = timeout_s
        self.give_up_after_s = give_up_after_s
        self.on_wait = on_wait or log.warning
        self.on_continue = on_continue
        self.waiting_calls = 0  # calls that reported a wait and have not ended
        self.timing = timing or Timing()
        self.token = _clean_token(os.environ.get(TOKEN_VARIABLE) if token is None else token)

    def begin_wait(self) -> None:
        """Note that a call waits from now on."""
        self.waiting_calls += 1

    def end_wait(self) -> None:
        """Note that a call that waited has ended; the last call ends the wait."""
        self.waiting_calls -= 1
        if not self.waiting_calls:
            self.on_continue()

    def look_again(self) -> None:
        """Read the file of the address; an unusable address is ignored."""
        if self._file is not None:
            with suppress(errors.ConfigError):
                self.url = _checked_url(_url_in(self._file, self.url))

    def arguments(self, call: ApiCall[Any]) -> dict[str, Any]:
        """Arguments of ``httpx.Client.request``.

        Redirects are not followed, because they could carry the token to another server.
        """
        bearer = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        timeout_s = self.timeout_s if call.timeout_s is None else call.timeout_s
        return {
            "method": call.method,
            "url": self.url + call.path,
            "content": call.body,
            "headers": {**call.headers, **bearer},
            "timeout": (min(CONNECT_TIMEOUT_S, timeout_s), timeout_s, timeout_s, timeout_s),
            "follow_redirects": False,
        }

    def transport(self) -> dict[str, Any]:
        """Arguments of httpx's transports."""
        return {
            "trust_env": False,
            "verify": self.verify(),
            "socket_options": kept_alive(),
        }

    def verify(self) -> ssl.SSLContext | bool:
        """The default authorities, or SSL_CERT_FILE for a private certificate."""
        private = os.environ.get("SSL_CERT_FILE")
        if private and self.url.startswith("https:"):
            return ssl.create_default_context(cafile=private)
        return True


def _url_in(file: Path, url: str) -> str:
    """The URL in a file. Raises ConfigError: it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise errors.ConfigError(f"{url}: no address of a rollout API: {error}") from error


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise errors.ConfigError(
            f"{url!r} is no URL of a rollout API, such as http://host:8000"
        )
    return url.rstrip("/")


def _clean_token(token: str | None) -> str | None:
    """The token, or None if it is empty. An error never shows it."""
    token = (token or "").strip()
    if not all("!" <= character <= "~" for character in token):
        raise errors.ConfigError(
            f"the token ({TOKEN_VARIABLE}) has characters that no token has"
        )
    return token or None
