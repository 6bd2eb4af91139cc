"""The one way to an inference server: JSON in, JSON out, three kinds of failure.

connection error, timeout, 408, 429, 5xx -> InferenceUnavailable   (try again)
any other 4xx                            -> InferenceRefused       (never try again)
an answer that is not JSON               -> InferenceUnavailable   (a proxy's error page)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError, InferenceRefused, InferenceUnavailable

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 10.0
DETAIL_CHARS = 500
RETRYABLE_STATUS = frozenset({408, 429})
ROUTING_HEADER = "X-SMG-Routing-Key"  # SGLang's gateway keeps equal keys on one engine


@dataclass(frozen=True)
class JsonReply:
    """A 2xx answer."""

    payload: Any
    headers: Mapping[str, str]


def server_root(base_url: str) -> str:
    """The address without a trailing ``/v1``: where /health and /generate live."""
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


class HttpClient:
    """A pool of connections to one server, opened at the first call.

    Args:
        timeout_s: bound of one request, from sending to the last byte.
        max_connections: as many as requests may be in flight, or they would queue here
            unseen and time out.
    """

    def __init__(self, *, timeout_s: float, max_connections: int, api_key: str | None) -> None:
        self.timeout_s = timeout_s
        self.max_connections = max_connections
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client: httpx.AsyncClient | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        if self._client is None:
            import httpx  # not above: it takes as long as all else an environment imports

            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(self.timeout_s, connect=CONNECT_TIMEOUT_S),
                limits=httpx.Limits(
                    max_connections=self.max_connections,
                    max_keepalive_connections=self.max_connections,
                ),
                headers=self.headers,
            )
        return self._client

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def post(
        self,
        url: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> JsonReply:
        return read_json(
            await self.send("POST", url, json=body, headers=headers, timeout_s=timeout_s)
        )

    async def get(self, url: str, timeout_s: float | None = None) -> JsonReply:
        return read_json(await self.send("GET", url, timeout_s=timeout_s))

    async def send(
        self,
        method: str,
        url: str,
        *,
        json: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """Send and return whatever status came back.

        Raises:
            InferenceUnavailable: nothing came back.
            ConfigError: the address is not a URL.
        """
        import httpx

        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        try:
            return await self.client.request(
                method, url, json=json, headers=_with_routing_key(headers), timeout=timeout
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as cause:
            raise ConfigError(f"base_url: {url} is not an http address: {cause}") from cause
        except httpx.TimeoutException as cause:
            bound = self.timeout_s if timeout_s is None else timeout_s
            raise InferenceUnavailable(
                f"{method} {url}: no response in {bound:g} s"
            ) from cause
        except httpx.TransportError as cause:
            reason = str(cause) or type(cause).__name__
            raise InferenceUnavailable(f"{method} {url}: {reason}") from cause


def _with_routing_key(headers: Mapping[str, str] | None) -> dict[str, str]:
    key = current_call().routing_key
    return {**({ROUTING_HEADER: key} if key else {}), **(headers or {})}


def read_json(response: httpx.Response) -> JsonReply:
    """The answer, or the error its status stands for."""
    status, where = response.status_code, f"{response.request.method} {response.request.url}"
    if status >= 500 or status in RETRYABLE_STATUS:
        detail = response.text[:DETAIL_CHARS]
        raise InferenceUnavailable(f"{where}: status {status}: {detail}")
    if status >= 300:
        raise InferenceRefused(status, f"{where}: {response.text[:DETAIL_CHARS]}")
    try:
        payload = response.json()
    except ValueError as cause:
        raise InferenceUnavailable(f"{where}: the response is not JSON") from cause
    return JsonReply(payload=payload, headers=response.headers)


@dataclass(frozen=True)
class CallContext:
    """``others_answer`` tells whether another server could take the call instead."""

    others_available: Callable[[], bool] = lambda: False
    routing_key: str | None = None  # sent to gateways, which keep a session on one engine


_current: ContextVar[CallContext] = ContextVar("call_context", default=CallContext())


def current_call() -> CallContext:
    return _current.get()


@contextmanager
def call_context(context: CallContext) -> Iterator[None]:
    """Everything awaited in the block, and every task started in it, sees ``context``."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
