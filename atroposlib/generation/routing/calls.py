"""Calls over several servers: n is split into chunks, and each chunk has a route.

call -> split n into chunks -> a route per chunk -> completion, renumbered
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.openai import join_choices
from atroposlib.generation.routing.failover import FailoverRoute
from atroposlib.generation.sampling.generation import (
    FourTuple,
    Generation,
    span_sampling,
    with_choice_seed,
    with_configured,
    with_max_tokens,
)
from atroposlib.generation.sampling.resume import Decode, generate_with_resume
from atroposlib.generation.sessions.recording import record_outputs
from atroposlib.utils.gathering import gather_or_cancel

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

T = TypeVar("T")
Kwargs = dict[str, Any]


class RoutedCalls(ABC):
    """The calls that a manager and its sticky sessions share."""

    max_n_completions: int

    @abstractmethod
    def _route(self, tokens: bool = False) -> FailoverRoute:
        """The route of a chunk. ``tokens``: only to servers that return token ids."""

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """Chat completion with any n, see :meth:`APIServer.chat_completion`."""
        parts = await self._in_chunks(kwargs, lambda server, kw: server.chat_completion(**kw))
        return join_choices(parts)

    async def completion(self, **kwargs: Any) -> Completion:
        """Text completion with any n, see :meth:`APIServer.completion`."""
        parts = await self._in_chunks(kwargs, lambda server, kw: server.completion(**kw))
        return join_choices(parts)

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> FourTuple:
        """Token completion with any n, see :meth:`APIServer.tokens_and_logprobs_completion`."""
        parts = await self._in_chunks(kwargs, _recorded_outputs, tokens=True)
        return (
            parts[0][0],
            [row for _, tokens, _, _ in parts for row in tokens],
            [row for _, _, logprobs, _ in parts for row in logprobs],
            [reason for _, _, _, reasons in parts for reason in reasons],
        )

    async def generate(
        self, input_ids: list[int], split: str = "train", **sampling: Any
    ) -> list[Generation]:
        """Continuations with any n, see :meth:`APIServer.generate`.

        If a server fails in the middle, a different server continues after the tokens received
        so far.
        """
        params = {"n": 1, "temperature": 1.0, **with_max_tokens(sampling)}

        async def chunk(kwargs: Kwargs) -> list[Generation]:
            route = self._route(tokens=True)

            async def ask(ids: list[int], segment: Kwargs) -> list[Generation]:
                return await route.call(
                    split, lambda server: server.generate_segment(ids, split, **segment)
                )

            async def decoder() -> Decode:
                return await route.call(split, lambda server: server.decoder())

            stall_timeout_s = max(server.config.timeout for server in route.servers)
            return await generate_with_resume(input_ids, kwargs, ask, decoder, stall_timeout_s)

        parts = await gather_or_cancel(chunk(kw) for kw in self._chunks(params))
        return [generation for part in parts for generation in part]

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """Logprobs of a given sequence, see :meth:`APIServer.get_logprobs`."""
        route = self._route(tokens=True)
        return await route.call(
            split_of(kwargs), lambda server: server.get_logprobs(**dict(kwargs))
        )

    async def _in_chunks(
        self,
        kwargs: Kwargs,
        call: Callable[[APIServer, Kwargs], Awaitable[T]],
        tokens: bool = False,
    ) -> list[T]:
        split = split_of(kwargs)

        async def one(chunk: Kwargs) -> T:
            # a copy for each attempt, because servers remove keys from it
            return await self._route(tokens).call(
                split, lambda server: call(server, dict(chunk))
            )

        return await gather_or_cancel(one(chunk) for chunk in self._chunks(kwargs))

    def _chunks(self, kwargs: Kwargs) -> list[Kwargs]:
        """The keyword arguments of each request. Each request has its own seed, if any."""
        n, largest = int(kwargs.get("n") or 1), self.max_n_completions
        if n <= largest:
            return [dict(kwargs)]
        return [
            {**with_choice_seed(kwargs, start), "n": min(largest, n - start)}
            for start in range(0, n, largest)
        ]


class StickyRoute(FailoverRoute):
    """Counts its session at its current server, so that new sessions go to other servers."""

    def __init__(self, servers: Sequence[APIServer], first: APIServer) -> None:
        super().__init__(servers, first, routing_key=str(uuid.uuid4()))
        self.on: APIServer = first
        first._parts.add_sessions(1)

    def move_to(self, server: APIServer) -> None:
        super().move_to(server)
        self.on._parts.add_sessions(-1)
        self.on = server
        server._parts.add_sessions(1)


@dataclass(eq=False)
class StickySession(RoutedCalls):
    """A session's view of a manager: the same server for every call until it fails.

    The turns of a session share their prefix, which the engine that served the last turn has
    in its KV cache. Attributes other than the calls come from the current server.
    """

    route: StickyRoute
    max_n_completions: int

    def _route(self, tokens: bool = False) -> FailoverRoute:
        return self.route

    def __getattr__(self, name: str) -> Any:
        if name == "route":  # unset while the object is copied or unpickled
            raise AttributeError(name)
        return getattr(self.route.on, name)


@contextmanager
def sticky_session(
    servers: Sequence[APIServer], first: Any, max_n_completions: int
) -> Iterator[Any]:
    """The server of a managed session: ``first``, then the remaining servers when it fails.

    With a stand-in of a test, which is no :class:`APIServer`, ``first`` is returned unchanged.
    """
    if not all(isinstance(server, APIServer) for server in servers):
        yield first
        return
    route = StickyRoute(servers, first)
    try:
        yield StickySession(route, max_n_completions)
    finally:
        route.on._parts.add_sessions(-1)


async def _recorded_outputs(server: APIServer, kwargs: Kwargs) -> FourTuple:
    outputs = await server.tokens_and_logprobs_completion(**dict(kwargs))
    record_outputs(outputs, span_sampling(with_configured(kwargs, server.config)))
    return outputs


def split_of(kwargs: Mapping[str, Any]) -> str:
    return str(kwargs.get("split") or "train")
