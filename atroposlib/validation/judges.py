"""Calls of models other than the policy, counted and bounded while an environment is tried.

    environment -> openai, httpx, requests, aiohttp -> send -> counted by address and model -> judge

A judge may cost money, and an environment under a check calls it often. A call is a POST to a path
of an API of language models at an address that is none of the policy's.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from atroposlib.envs.runtime.env_runtime import runtime_of

PATHS = ("/completions", "/responses", "/messages", "/generate", ":generateContent")
FLAG = "--max-judge-calls"
# Module -> class and method, with the position of the request, or of method and address.
ASYNC_CLIENTS = {"httpx": "AsyncClient", "httpx2": "AsyncClient"}
CLIENTS = {"httpx": "Client", "httpx2": "Client", "requests": "Session"}


class JudgeCallsSpent(BaseException):
    """More calls than allowed; no ``except Exception`` of an environment or a client hides it."""

    def __init__(self, calls: JudgeCalls) -> None:
        super().__init__(
            f"more than {calls.most} calls of models that are not the policy "
            f"({calls.addresses()}): {FLAG} {2 * calls.most or 10} allows more"
        )


class JudgeCalls:
    """Counts calls by address and model; raises at the call after the last allowed one.

    Args:
        most: allowed calls.
        policy: addresses whose calls are those of the policy, at the time of a call.
    """

    def __init__(self, most: int, policy: Callable[[], Collection[str]] = lambda: ()) -> None:
        self.most = most
        self._policy = policy
        self.by_judge: Counter[str] = Counter()
        self._lock = threading.Lock()

    def leave_out(self, policy: Callable[[], Collection[str]]) -> None:
        """Count no call of these addresses from now on."""
        self._policy = policy

    @property
    def count(self) -> int:
        return self.by_judge.total()

    @property
    def left(self) -> int:
        return self.most - self.count

    def addresses(self) -> str:
        """Judges with their calls: ``localhost:9002 small 12``."""
        return (
            ", ".join(f"{judge} {calls}" for judge, calls in self.by_judge.items()) or "none"
        )

    def note(self, method: str, url: str, body: bytes) -> None:
        """Count a request, if it is a call of a judge.

        Raises JudgeCallsSpent: it would be one too many; it is not sent.
        """
        address = urlsplit(url)
        if method.upper() != "POST" or not address.path.endswith(PATHS):
            return
        if address.netloc in {urlsplit(known).netloc for known in self._policy()}:
            return
        with self._lock:
            if self.count >= self.most:
                raise JudgeCallsSpent(self)
            self.by_judge[f"{address.netloc} {model_in(body)}".rstrip()] += 1


def model_in(body: bytes) -> str:
    """The model that a request names, if it is JSON."""
    try:
        return str(json.loads(body)["model"])[:80]
    except (ValueError, KeyError, TypeError):
        return ""


@contextmanager
def judge_counter(calls: JudgeCalls) -> Iterator[JudgeCalls]:
    """Count the calls of the HTTP clients of this process inside of the context."""
    undo: list[tuple[Any, str, Any]] = []

    def wrap(module: str, name: str, method: str, wrapped: Callable[[Any], Any]) -> None:
        # The first client of a module may be made inside of the context.
        if module in sys.modules or find_spec(module) is not None:
            kind = getattr(import_module(module), name)
            undo.append((kind, method, getattr(kind, method)))
            setattr(kind, method, wrapped(getattr(kind, method)))

    def with_count(send: Any) -> Any:
        def send_counted(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            # An async send returns its coroutine, and is counted when it is made.
            calls.note(request.method, str(request.url), sent_body(request))
            return send(self, request, *args, **kwargs)

        return send_counted

    def with_count_in_aiohttp(send: Any) -> Any:
        async def send_counted(self: Any, method: str, url: Any, **kwargs: Any) -> Any:
            whole = url if urlsplit(str(url)).netloc else f"{self._base_url or ''}{url}"
            calls.note(method, str(whole), json.dumps(kwargs.get("json")).encode())
            return await send(self, method, url, **kwargs)

        return send_counted

    try:
        for clients in (ASYNC_CLIENTS, CLIENTS):
            for module, name in clients.items():
                wrap(module, name, "send", with_count)
        wrap("aiohttp", "ClientSession", "_request", with_count_in_aiohttp)
        yield calls
    finally:
        for kind, method, original in reversed(undo):
            setattr(kind, method, original)


def sent_body(request: Any) -> bytes:
    """The body of a request of requests or httpx that is in memory; empty for a stream."""
    try:
        body = request.body if hasattr(request, "body") else request.content
    except RuntimeError:  # a request of httpx whose body is a stream
        return b""
    if isinstance(body, str):
        return body.encode()
    return body if isinstance(body, bytes) else b""


def policy_addresses(env: Any) -> Sequence[str]:
    """Addresses of the policy: the servers of an environment, and its proxy for agents."""
    servers = [str(server.config.base_url) for server in runtime_of(env).server.servers]
    proxy = getattr(getattr(env, "rollouts", None), "proxy_url", None)
    return [*servers, proxy] if proxy else servers
