"""Retry elsewhere: a call that fails on one server is made on another."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.health import FailoverRequired, HealthState
from atroposlib.generation.engines.http import CallContext, call_context

logger = logging.getLogger(__name__)
T = TypeVar("T")


def pick_index(headrooms: Sequence[int], healthy: Sequence[bool]) -> int:
    """The healthy server with most headroom; the first of equals; any when none is healthy.

    A server that is down still gets the call when there is no other: the call then waits for
    it, within a bound, and says so.
    """
    return max(range(len(headrooms)), key=lambda i: (healthy[i], headrooms[i], -i))


def pick_server(servers: Sequence[APIServer], split: str) -> APIServer:
    """The one with most room, after asking those that are down once more."""
    recheck(servers)
    index = pick_index(
        [free_slots(server, split) for server in servers],
        [is_up(server) for server in servers],
    )
    return servers[index]


def any_available(servers: Sequence[APIServer]) -> bool:
    """Whether one of them is not known to be down; those that are get asked once more."""
    recheck(servers)
    return any(is_up(server) for server in servers)


def recheck(servers: Sequence[APIServer]) -> None:
    for server in servers:
        if isinstance(server, APIServer):
            server.health.recheck()


def is_up(server: Any) -> bool:
    """Not known to be down. Stand-ins of tests may set ``server_healthy``."""
    if isinstance(server, APIServer):
        return server.health.state is not HealthState.DOWN
    return bool(getattr(server, "server_healthy", True))


def free_slots(server: Any, split: str) -> int:
    """Free slots, less one for each open session.

    Tests put objects of their own in place of servers, which only have the original's
    attributes: then the free slots for training, where there are such.
    """
    if isinstance(server, APIServer):
        return server.headroom(split) - server.sessions
    value = getattr(getattr(server, "sem", None), "_value", 0)
    return value if isinstance(value, int) else 0


def returns_tokens(server: APIServer) -> bool:
    return bool(getattr(server, "returns_tokens", True))


def token_servers(servers: Sequence[APIServer]) -> Sequence[APIServer]:
    """Those that return token ids, where there are such."""
    return [one for one in servers if returns_tokens(one)] or servers


@contextmanager
def counted_session(server: Any) -> Iterator[Any]:
    """Count a session, so that the next one opens elsewhere."""
    if not isinstance(server, APIServer):
        yield server
        return
    server.sessions += 1
    try:
        yield server
    finally:
        server.sessions -= 1


class FailoverRoute:
    """The way of a series of calls: one server while it answers, else another.

    Args:
        servers: where the calls may go; they are taken to serve the same model.
        first: the server to begin with; picked at the first call when not given.
        routing_key: tells a gateway behind the address which calls belong together.
    """

    def __init__(
        self,
        servers: Sequence[APIServer],
        first: APIServer | None = None,
        routing_key: str | None = None,
    ) -> None:
        self.servers = servers
        self.server = first
        self.routing_key = routing_key

    async def call(self, split: str, attempt: Callable[[APIServer], Awaitable[T]]) -> T:
        """``attempt`` on the route's server; when that fails, on each other one once.

        Raises:
            InferenceUnavailable: the last failure, when every server failed.
        """
        failed: list[APIServer] = []
        started = time.monotonic()
        while True:
            left = [one for one in self.servers if one not in failed]
            server = self._choose(left, split)
            others = [one for one in left if one is not server]
            try:
                with call_context(
                    CallContext(lambda: any_available(others), self.routing_key)
                ):
                    return await attempt(server)
            except FailoverRequired as down:
                if time.monotonic() - started >= server.config.timeout:
                    raise
                logger.warning("%s; failing over to another server", down)
            except InferenceUnavailable as failure:
                failed.append(server)
                if len(left) == 1:
                    raise
                logger.warning("%s; failing over to another server", failure)

    def _choose(self, servers: Sequence[APIServer], split: str) -> APIServer:
        """Stay where the engine has the prompt in its cache, unless that server is gone."""
        here = self.server
        if here is None or here not in servers:
            self.move_to(pick_server(servers, split))
        elif not is_up(here) and any_available(servers):
            self.move_to(pick_server(servers, split))
        assert self.server is not None
        return self.server

    def move_to(self, server: APIServer) -> None:
        self.server = server
