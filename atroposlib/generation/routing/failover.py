"""Retry elsewhere: a call that fails on one server is made on another."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.base import APIServer
from atroposlib.generation.engines.health import ServerLeft
from atroposlib.generation.routing.pick import any_answers, is_up, pick_server
from atroposlib.generation.sampling.call_context import CallContext, calling

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Route:
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
                with calling(CallContext(lambda: any_answers(others), self.routing_key)):
                    return await attempt(server)
            except ServerLeft as down:
                if time.monotonic() - started >= server.config.timeout:
                    raise
                logger.warning("%s; trying another one", down)
            except InferenceUnavailable as failure:
                failed.append(server)
                if len(left) == 1:
                    raise
                logger.warning("%s; trying another server", failure)

    def _choose(self, servers: Sequence[APIServer], split: str) -> APIServer:
        """Stay where the engine has the prompt in its cache, unless that server is gone."""
        here = self.server
        if here is None or here not in servers:
            self.move_to(pick_server(servers, split))
        elif not is_up(here) and any_answers(servers):
            self.move_to(pick_server(servers, split))
        assert self.server is not None
        return self.server

    def move_to(self, server: APIServer) -> None:
        self.server = server
