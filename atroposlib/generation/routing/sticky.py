"""One session's view of a manager's servers: always the same one, as long as it answers.

The turns of a session share their beginning, which the engine that served the last turn
still has in its cache.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from atroposlib.generation.engines.base import APIServer
from atroposlib.generation.routing.calls import RoutedCalls
from atroposlib.generation.routing.failover import Route


class SessionRoute(Route):
    """Counts its session on the server it is on, so that the next session opens elsewhere."""

    def __init__(self, servers: Sequence[APIServer], first: APIServer) -> None:
        super().__init__(servers, first, routing_key=str(uuid.uuid4()))
        self.on: APIServer = first
        first.sessions += 1

    def move_to(self, server: APIServer) -> None:
        super().move_to(server)
        self.on.sessions -= 1
        self.on = server
        server.sessions += 1

    def end(self) -> None:
        self.on.sessions -= 1


class Session(RoutedCalls):
    """Has the calls of an :class:`APIServer`; everything else is that of its server."""

    def __init__(self, route: SessionRoute, max_n_completions: int) -> None:
        self.route = route
        self.max_n_completions = max_n_completions

    def _route(self, tokens: bool = False) -> Route:
        return self.route

    @property
    def config(self) -> Any:
        return self.route.on.config

    def __getattr__(self, name: str) -> Any:
        if name == "route":  # not there yet: while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.route.on, name)


@contextmanager
def session_on_route(
    servers: Sequence[APIServer], first: Any, max_n_completions: int
) -> Iterator[Any]:
    """What a managed session samples from: ``first``, and the others when it fails.

    An object that a test put in the place of a server is used as it is.
    """
    if not isinstance(first, APIServer):
        yield first
        return
    route = SessionRoute(servers, first)
    try:
        yield Session(route, max_n_completions)
    finally:
        route.end()
