"""Choice of a server by free slots, and failover to another server."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.health import FailoverRequired, HealthState
from atroposlib.generation.engines.http import CallContext, call_context

logger = logging.getLogger(__name__)
T = TypeVar("T")


def pick_server(servers: Sequence[APIServer], split: str) -> APIServer:
    """The healthy server with most free slots, the first of several; unhealthy servers are probed.

    If no server is healthy, a server that is down is picked. The call then waits for it, at
    most ``config.timeout`` seconds, and logs the wait.
    """
    recheck(servers)
    if not servers:
        raise InferenceUnavailable(
            "no inference server is in the directory of the rollout API"
        )
    return max(servers, key=lambda server: (is_up(server), free_slots(server, split)))


def any_available(servers: Sequence[APIServer]) -> bool:
    """Whether a server is not known to be down; servers that are down are probed again."""
    recheck(servers)
    return any(is_up(server) for server in servers)


def recheck(servers: Sequence[APIServer]) -> None:
    for server in servers:
        if isinstance(server, APIServer):
            server._parts.health.recheck()


def is_up(server: Any) -> bool:
    """Whether a server is not known to be down. Stand-ins of tests may set ``server_healthy``."""
    if isinstance(server, APIServer):
        return server._parts.health.state is not HealthState.DOWN
    return bool(getattr(server, "server_healthy", True))


def free_slots(server: Any, split: str) -> int:
    """Free slots minus open sessions; for a stand-in of a test only free slots."""
    if isinstance(server, APIServer):
        return APIServer.headroom(server, split) - server._parts.sessions
    slots = getattr(server, "sem" if split == "train" else "eval_sem", None)
    value = getattr(slots, "_value", 0)
    return value if isinstance(value, int) else 0


def returns_tokens(server: APIServer) -> bool:
    return bool(getattr(server, "returns_tokens", True))


def token_servers(servers: Sequence[APIServer]) -> Sequence[APIServer]:
    """The servers that return token ids; all of ``servers`` if all or none do."""
    usable = [server for server in servers if returns_tokens(server)]
    return usable if 0 < len(usable) < len(servers) else servers


@dataclass(eq=False)
class FailoverRoute:
    """Route of a series of calls: the same server until it fails, then another."""

    servers: Sequence[APIServer]  # candidates, which must serve the same model
    server: APIServer | None = None  # None: picked at the first call
    routing_key: str | None = None  # a gateway sends equal keys to the same engine

    async def call(self, split: str, attempt: Callable[[APIServer], Awaitable[T]]) -> T:
        """Run ``attempt`` on the current server, after a failure once on each remaining server.

        ``servers`` may change meanwhile. Raises the last failure, when every server failed.
        """
        failed: list[APIServer] = []
        started = time.monotonic()

        def others() -> list[APIServer]:
            return [
                candidate for candidate in self.servers if candidate not in (server, *failed)
            ]

        while True:
            server = self._choose(
                [candidate for candidate in self.servers if candidate not in failed], split
            )
            try:
                with call_context(
                    CallContext(lambda: any_available(others()), self.routing_key)
                ):
                    return await attempt(server)
            except FailoverRequired as down:
                if time.monotonic() - started >= server.config.timeout:
                    raise
                logger.warning("%s; failing over to another server", down)
            except InferenceUnavailable as failure:
                failed.append(server)
                if not others():
                    raise
                logger.warning("%s; failing over to another server", failure)

    def _choose(self, servers: Sequence[APIServer], split: str) -> APIServer:
        """The current server, whose KV cache has the prefix, unless it is down or failed."""
        here = self.server
        if here is None or here not in servers or not is_up(here) and any_available(servers):
            here = pick_server(servers, split)
            self.move_to(here)
        return here

    def move_to(self, server: APIServer) -> None:
        self.server = server
