"""How long a client waits for the API, how it says so, and what it sends along. No I/O."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from atroposlib.errors import ConfigError, RolloutApiUnavailable
from atroposlib.utils.backoff import Backoff, Retrier
from atroposlib.utils.http_server import is_loopback

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "ATROPOS_API_TOKEN"
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0  # an API that came back waits no longer than this for its clients
LONGEST_ASKED_S = 60.0  # longer pauses are not taken, whatever Retry-After says


@dataclass(frozen=True, slots=True)
class Postponed:
    """No usable answer yet: send the same again, ``at_least_s`` from now."""

    problem: str
    at_least_s: float = 0.0


class Patience:
    """The pauses of one call: growing, jittered, bounded, announced."""

    def __init__(self, url: str, give_up_after_s: float, on_wait: Callable[[str], None]):
        self._url = url
        self._limit_s = give_up_after_s
        self._on_wait = on_wait
        self._retrier = Retrier(Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), give_up_after_s)

    def pause_after(self, postponed: Postponed) -> float:
        """Seconds to wait before the next try.

        Raises:
            RolloutApiUnavailable: the bound of the wait is reached.
        """
        waited = self._retrier.elapsed_s
        if self._retrier.expired:
            raise RolloutApiUnavailable(
                f"rollout API at {self._url}: {postponed.problem}; "
                f"gave up after {waited:.0f} s"
            )
        self._on_wait(
            f"waiting for rollout API at {self._url}: {postponed.problem}, "
            f"{waited:.0f} s of at most {self._limit_s:.0f} s"
        )
        return self._retrier.pause_s(min(postponed.at_least_s, LONGEST_ASKED_S))


def problem_of(error: httpx.RequestError) -> str:
    import httpx  # not above: loading it takes as long as all else an environment imports

    if isinstance(error, httpx.ConnectError):
        return "connection refused" if "refused" in str(error).lower() else str(error)
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    return str(error) or type(error).__name__


class Settings:
    """What both clients keep. Proxies of the environment are not used: with one set, a
    call to localhost would leave the machine."""

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

    def patience(self) -> Patience:
        return Patience(self.url, self.give_up_after_s, self.on_wait)

    def arguments(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: dict[str, str],
        timeout_s: float | None,
    ) -> dict[str, Any]:
        """For ``httpx.Client.request``. The token goes to this API only: redirects, which
        could carry it elsewhere, are not followed."""
        if self.token is not None:
            headers = {**headers, "authorization": f"Bearer {self.token}"}
        return {
            "method": method,
            "url": self.url + path,
            "content": body,
            "headers": headers,
            "timeout": self.timeout_s if timeout_s is None else timeout_s,
            "follow_redirects": False,
        }

    def verify(self) -> ssl.SSLContext | bool:
        """The usual authorities, or those of SSL_CERT_FILE, for an API with a private one."""
        private = os.environ.get("SSL_CERT_FILE")
        if private and self.url.startswith("https:"):
            return ssl.create_default_context(cafile=private)
        return True


def _checked(token: str | None) -> str | None:
    """The token, or None for an empty one. A refusal never shows it."""
    token = (token or "").strip()
    if not all("!" <= character <= "~" for character in token):
        raise ConfigError(f"the token ({TOKEN_VARIABLE}) has characters that no token has")
    return token or None
