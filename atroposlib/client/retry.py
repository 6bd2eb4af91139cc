"""Retry policy (exponential backoff, deadline) and connection settings of the clients."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from atroposlib.client.api_calls import ApiCall, RetryLater
from atroposlib.errors import ConfigError, RolloutApiUnavailable
from atroposlib.utils.backoff import Backoff, jittered
from atroposlib.utils.http_server import is_loopback

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "ATROPOS_API_TOKEN"
BACKOFF = Backoff(0.2, 5.0)  # clients return at most this long after the API does
MAX_RETRY_AFTER_S = 60.0  # maximum of a pause requested by Retry-After


class RetryPolicy:
    """The pauses of one call: exponential, jittered, bounded, and reported to ``on_wait``."""

    def __init__(self, url: str, give_up_after_s: float, on_wait: Callable[[str], None]):
        self._url = url
        self._limit_s = give_up_after_s
        self._on_wait = on_wait
        self._started = time.monotonic()
        self._failures = 0

    def pause_after(self, later: RetryLater) -> float:
        """Seconds to wait before the next try; not past the deadline.

        A pause that the API requested has no jitter when it is the longer one.

        Raises:
            RolloutApiUnavailable: the bound of the wait is reached.
        """
        waited = time.monotonic() - self._started
        if waited >= self._limit_s:
            raise RolloutApiUnavailable(
                f"rollout API at {self._url}: {later.problem}; "
                f"gave up after {waited:.0f} s"
            )
        self._on_wait(
            f"waiting for rollout API at {self._url}: {later.problem}, "
            f"{waited:.0f} s of at most {self._limit_s:.0f} s"
        )
        self._failures += 1
        own = BACKOFF.pause_s(self._failures)
        asked = min(later.at_least_s, MAX_RETRY_AFTER_S)
        pause = min(max(own, asked), self._limit_s - waited)
        return jittered(pause) if own > asked else pause


def problem_of(error: httpx.RequestError) -> str:
    import httpx  # not above: loading it takes as long as all else an environment imports

    if isinstance(error, httpx.ConnectError):
        return "connection refused" if "refused" in str(error).lower() else str(error)
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


class ConnectionSettings:
    """URL, timeouts and token of a client.

    Proxy variables are ignored: with one set, a call to localhost would leave the machine.
    """

    def __init__(
        self,
        base_url: str,
        timeout_s: float,
        give_up_after_s: float,
        on_wait: Callable[[str], None] | None,
        token: str | None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{base_url!r} is no URL of a rollout API, such as http://host:8000"
            )
        self.url = base_url.rstrip("/")
        self.local = is_loopback(parts.hostname)
        self.timeout_s = timeout_s
        self.give_up_after_s = give_up_after_s
        self.on_wait = on_wait or log.warning
        self.token = _checked(os.environ.get(TOKEN_VARIABLE) if token is None else token)

    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy(self.url, self.give_up_after_s, self.on_wait)

    def arguments(self, call: ApiCall[Any]) -> dict[str, Any]:
        """Arguments of ``httpx.Client.request``.

        Redirects are not followed, because they could carry the token to another server.
        """
        bearer = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        return {
            "method": call.method,
            "url": self.url + call.path,
            "content": call.body,
            "headers": {**call.headers, **bearer},
            "timeout": self.timeout_s if call.timeout_s is None else call.timeout_s,
            "follow_redirects": False,
        }

    def verify(self) -> ssl.SSLContext | bool:
        """The default authorities, or those of SSL_CERT_FILE, for a private certificate."""
        private = os.environ.get("SSL_CERT_FILE")
        if private and self.url.startswith("https:"):
            return ssl.create_default_context(cafile=private)
        return True


def _checked(token: str | None) -> str | None:
    """The token, or None for an empty one. An error never shows it."""
    token = (token or "").strip()
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"the token ({TOKEN_VARIABLE}) has characters that no token has")
    return token or None
