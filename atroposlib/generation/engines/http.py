"""HTTP client of an inference server: JSON, three kinds of failure, the served model.

connection error, timeout, 408, 429, 5xx -> InferenceUnavailable   (retried)
any further 4xx                          -> InferenceRefused       (not retried)
a response that is not JSON              -> InferenceUnavailable   (a proxy's error page)
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

from atroposlib.errors import (
    ConfigError,
    ContextFull,
    InferenceRefused,
    InferenceUnavailable,
)
from atroposlib.text.lines import encodable_values
from atroposlib.utils.http.sockets import CONNECT_TIMEOUT_S, kept_alive

if TYPE_CHECKING:
    import httpx

DETAIL_CHARS = 500
NOT_JSON = (ValueError, RecursionError)  # of a decoder: other text, or thousands of brackets
POOL_CONNECTIONS = 8
RETRYABLE_STATUS = frozenset({408, 429})
MAX_NAMES = 8  # limit of served models in a message
UNNAMED = "default"  # model_name where none is set
# owned_by of servers that serve listed models only.
LOCAL, SGLANG, VLLM = "atropos-local", "sglang", "vllm"
GENERATION_PATHS = ("/generate", "/generate/", "/v1/completions", "/v1/chat/completions")
ROUTING_HEADER = "X-SMG-Routing-Key"  # SGLang's gateway sends equal keys to the same engine


@dataclass(frozen=True)
class JsonReply:
    """Decoded body and headers of a 2xx response."""

    payload: Any
    headers: Mapping[str, str]


def server_root(base_url: str) -> str:
    """The address without a trailing ``/v1``: the base of /health and /generate."""
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


@dataclass(eq=False, slots=True)
class _Pool:
    client: httpx.AsyncClient
    running: set[asyncio.Task[httpx.Response]] = field(default_factory=set)


@dataclass(eq=False, repr=False)
class HttpClient:
    """Connections to a server, opened as requests need them.

    Small pools: for each request httpx goes over all pairs of connections of its pool. With 128
    connections in one pool a request takes 20 ms of CPU, with pools of 8 it takes 1 ms
    (benchmarks/bench_connections.py).
    """

    timeout_s: float  # limit of a request, from sending to the last byte
    api_key: str | None
    _pools: list[_Pool] = field(default_factory=list)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def _pool_with_room(self) -> _Pool:
        for pool in self._pools:
            if len(pool.running) < POOL_CONNECTIONS:
                return pool
        self._pools.append(_Pool(self._new_client()))
        return self._pools[-1]

    def _new_client(self) -> httpx.AsyncClient:
        # local: its import takes as long as all further imports of an environment
        import httpx

        direct = None  # httpx asks no proxy with a transport that it is given
        if not getproxies():
            direct = httpx.AsyncHTTPTransport(verify=_tls(), socket_options=kept_alive())
        return httpx.AsyncClient(
            timeout=httpx.Timeout(self.timeout_s, connect=CONNECT_TIMEOUT_S),
            headers={**JSON_HEADERS, **self.headers},
            transport=direct,
            verify=_tls(),
        )

    async def aclose(self) -> None:
        """Close the connections; requests that run fail with InferenceUnavailable."""
        pools, self._pools = self._pools, []
        # Also cancels opening connections: httpx closes only open connections.
        for request in [request for pool in pools for request in pool.running]:
            request.cancel()
        for pool in pools:
            await pool.client.aclose()

    async def post(
        self,
        url: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> JsonReply:
        return read_reply(
            await self.send("POST", url, json=body, headers=headers, timeout_s=timeout_s)
        )

    async def field(self, method: str, url: str, name: str, json: Any = None) -> Any:
        """A field of a JSON object that came with status 200; else None."""
        response = await self.send(method, url, json=json, timeout_s=CONNECT_TIMEOUT_S)
        try:
            decoded = response.json() if response.status_code == 200 else None
        except NOT_JSON:
            return None
        return decoded.get(name) if isinstance(decoded, dict) else None

    async def send(
        self,
        method: str,
        url: str,
        *,
        json: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """Send a request; return the response of any status.

        Raises InferenceUnavailable without a response, ConfigError if the address is not a
        URL.
        """
        import httpx

        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        content = None if json is None else JSON_FORM.encode(json).encode()
        headers = _with_routing_key(headers)
        pool = self._pool_with_room()
        request = asyncio.ensure_future(
            pool.client.request(method, url, content=content, headers=headers, timeout=timeout)
        )
        pool.running.add(request)
        try:
            return await request
        except asyncio.CancelledError:
            if pool in self._pools:  # the caller was cancelled
                raise
            raise InferenceUnavailable(f"{method} {url}: the connection was closed") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as cause:
            raise ConfigError(f"base_url: {url} is not an http address: {cause}") from cause
        except httpx.TimeoutException as cause:
            bound = self.timeout_s if timeout_s is None else timeout_s
            problem = f"no response in {bound:g} s"
            if isinstance(cause, httpx.ConnectTimeout):
                problem = f"no connection in {min(bound, CONNECT_TIMEOUT_S):g} s"
            raise InferenceUnavailable(f"{method} {url}: {problem}") from cause
        except httpx.TransportError as cause:
            reason = str(cause) or type(cause).__name__
            raise InferenceUnavailable(f"{method} {url}: {reason}") from cause
        finally:
            pool.running.discard(request)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()  # 20 ms


def _json_form(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json", exclude_none=True)
    if (numbers := getattr(value, "tolist", None)) is not None:
        return numbers()
    raise TypeError(f"a request holds a {type(value).__name__}, which has no JSON form")


# Requests may hold objects of the openai package and numbers of numpy. TypeError: a value has no
# JSON form; ValueError: a number is not finite.
JSON_FORM = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_json_form
)
JSON_HEADERS = {"Content-Type": "application/json"}


def _with_routing_key(headers: Mapping[str, str] | None) -> dict[str, str]:
    key = current_call.get().routing_key
    return {**({ROUTING_HEADER: key} if key else {}), **(headers or {})}


def read_reply(response: httpx.Response) -> JsonReply:
    """The decoded response. Raises InferenceUnavailable or InferenceRefused, as above."""
    status, where = response.status_code, f"{response.request.method} {response.request.url}"
    if status >= 500 or status in RETRYABLE_STATUS:
        detail = response.text[:DETAIL_CHARS]
        raise InferenceUnavailable(f"{where}: status {status}: {detail}")
    if status >= 300:
        raise refusal_of(status, response.text, where)
    try:
        payload = response.json()
    except NOT_JSON as cause:
        raise InferenceUnavailable(f"{where}: the response is not JSON") from cause
    if b"\\ud" in response.content.lower():  # perhaps half of a surrogate pair
        payload = encodable_values(payload)
    return JsonReply(payload=payload, headers=response.headers)


# Text of vLLM, SGLang, TRL, llama.cpp, OpenAI, Anthropic and our server if the prompt, or
# the prompt with the tokens asked for, does not fit.
_CONTEXT_FULL = re.compile(
    r"context[ _](?:length|size|window)|maximum model length|max_model_len|max_seq_len"
    r"|(?:prompt|input|inputs) (?:is|are) too long|tokens of context|too many (?:input )?tokens",
    re.IGNORECASE,
)


def refusal_of(status: int, text: str, where: str) -> InferenceRefused:
    """The error of a 4xx: ContextFull if the body reports a full context, else InferenceRefused."""
    is_full = status in (400, 413, 422) and _CONTEXT_FULL.search(text) is not None
    return (ContextFull if is_full else InferenceRefused)(
        status, f"{where}: {_sentence_in(text)[:DETAIL_CHARS]}"
    )


def _sentence_in(text: str) -> str:
    """The message in a body of JSON, as OpenAI, vLLM, SGLang and our server write it; else all."""
    try:
        reply = json.loads(text)
        problem = reply.get("error", reply)
        sentence = problem if isinstance(problem, str) else problem["message"]
    except (*NOT_JSON, AttributeError, KeyError, TypeError):
        return text
    return sentence if isinstance(sentence, str) else text


@dataclass(frozen=True)
class CallContext:
    """Context of a call from its router, for the layers below.

    A context variable and no keyword argument, because custom backends forward their
    keyword arguments to their servers.
    """

    others_available: Callable[[], bool] = lambda: False
    routing_key: str | None = None  # gateways send equal keys to the same engine


current_call: ContextVar[CallContext] = ContextVar("current_call", default=CallContext())


@contextmanager
def call_context(context: CallContext) -> Iterator[None]:
    """Set ``context`` for what the block awaits, and for the tasks that it starts."""
    token = current_call.set(context)
    try:
        yield
    finally:
        current_call.reset(token)


async def served_model(http: HttpClient, root: str, wanted: str) -> tuple[str, str | None]:
    """The name that requests use for ``wanted``; directory or hub name of the model, or None.

    By GET /v1/models: vLLM and atropos-infer list it as ``root``, SGLang in /get_model_info.
    """
    cards = await model_cards(http, root)
    if not cards:
        await _require_generation(http, root)
        return wanted, None
    # adapters have a parent
    bases = [card for card in cards if not card.get("parent")] or cards
    ids = _ids([*bases, *cards])
    owner, roots = bases[0].get("owned_by"), {str(card.get("root") or "") for card in bases}
    directory = roots.pop() or None if len(roots) == 1 else None
    if owner == SGLANG:
        directory = await http.field("GET", f"{root}/get_model_info", "tokenizer_path")
    is_path = owner == LOCAL and Path(wanted).resolve() == Path(directory or "").resolve()
    if is_path or wanted == UNNAMED and (directory or len(bases) == 1):
        return ids[0], directory
    adapted = wanted.rpartition(":")[0] if owner == SGLANG else wanted  # base:adapter
    if owner in (LOCAL, SGLANG, VLLM) and not {wanted, adapted}.intersection(ids):
        # vLLM with this route gets the names of adapters while it runs.
        later = await http.send("GET", f"{root}/v1/load_lora_adapter")
        if owner == LOCAL or later.status_code == 404:
            raise ConfigError(_not_served(wanted, root, ids))
    return wanted, directory


async def why_refused(http: HttpClient, root: str, wanted: str) -> str | None:
    """Why a request for ``wanted`` was refused; None if the server lists it, or nothing."""
    ids = _ids(await model_cards(http, root))
    return _not_served(wanted, root, ids) if ids and wanted not in ids else None


async def model_cards(http: HttpClient, root: str) -> list[dict[str, Any]]:
    """The models that a server lists in GET /v1/models; none if its reply has another form."""
    listed = await http.field("GET", f"{root}/v1/models", "data")
    cards = listed if isinstance(listed, list) else ()
    return [card for card in cards if isinstance(card, dict)]


def _ids(cards: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(card.get("id")) for card in cards))


def _not_served(wanted: str, root: str, ids: Sequence[str]) -> str:
    return (
        f"model {wanted!r} is not served at {root}: set --openai.model_name to "
        f"{' or '.join(ids[:MAX_NAMES])}, or leave it out"
    )


async def _require_generation(http: HttpClient, root: str) -> None:
    """Require a route that generates: it answers an empty body by 401, 500 or JSON."""
    for path in GENERATION_PATHS:
        response = await http.send("POST", root + path, json={})
        is_json, code = (
            "json" in response.headers.get("content-type", ""),
            response.status_code,
        )
        if code in (502, 503, 504):
            raise InferenceUnavailable(f"POST {root}{path}: status {code}")
        if code in (401, 403, 500) or is_json and code not in (404, 405, 501):
            return
    raise ConfigError(
        f"{root} answers, but is no inference server: correct --openai.base_url, or start one "
        "at a free port: atropos-infer --model MODEL_DIR --port 9001"
    )
