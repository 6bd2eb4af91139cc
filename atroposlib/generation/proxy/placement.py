"""On which server a session samples, and the managed server that does it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from atroposlib.errors import InferenceRefused
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.openai import TokenServer
from atroposlib.generation.proxy.session import Managed, Settings
from atroposlib.generation.routing.calls import Session as RoutedSession
from atroposlib.generation.routing.calls import SessionRoute
from atroposlib.generation.routing.failover import pick_server, token_servers
from atroposlib.generation.sessions.dummy import DummyManagedServer
from atroposlib.generation.sessions.managed import ManagedServer


class Servers(Protocol):
    """What is needed of a ``ServerManager``."""

    servers: Any  # APIServers, or objects of the original's shape


@dataclass(frozen=True)
class Placement:
    """A place for one session; ``leave`` when it ends."""

    server: Any
    managed: Managed
    leave: Callable[[], None]


async def place(
    manager: Servers, base_url: str | None, settings: Settings, tokenizer: Any
) -> Placement:
    """The server at ``base_url``, else the freest healthy one.

    With servers of ours a session goes on elsewhere when its server fails, unless one was
    asked for by its address.

    Raises:
        InferenceRefused: 404; there is no such server.
        ConfigError: there is no such tool parser.
    """
    servers = list(manager.servers)
    wanted = [_at(servers, base_url)] if base_url else token_servers(servers)
    if not wanted:
        raise InferenceRefused(404, "there is no server yet: POST /setup names some")
    chosen = pick_server(wanted, settings.split)
    if not all(isinstance(server, APIServer) for server in wanted):
        return Placement(
            chosen, await _managed(chosen, chosen, settings, tokenizer), lambda: None
        )
    if isinstance(chosen, TokenServer) and tokenizer is not None:
        chosen.offer_tokenizer(tokenizer)
    route = SessionRoute(wanted, chosen)
    routed = RoutedSession(route, getattr(manager, "max_n_completions", 8))
    try:
        managed = await _managed(routed, chosen, settings, tokenizer)
    except BaseException:
        route.end()
        raise
    return Placement(chosen, managed, route.end)


def address_of(server: Any) -> str | None:
    """``base_url`` of its config; a stand-in of a test may have none."""
    found = getattr(server.config, "base_url", None)
    return None if found is None else str(found)


async def _managed(calls: Any, server: Any, settings: Settings, tokenizer: Any) -> Managed:
    if getattr(server, "returns_tokens", True) is False:
        return DummyManagedServer(calls, tokenizer, settings.track_tree)
    # A tool parser needs the tokenizer, which takes seconds to load: not on the event loop.
    return await asyncio.to_thread(
        ManagedServer,
        calls,
        tokenizer,
        settings.track_tree,
        settings.tool_parser,
        settings.preserve_think_blocks,
    )


def _at(servers: Sequence[Any], base_url: str) -> Any:
    for server in servers:
        if (address_of(server) or "").rstrip("/") == base_url.rstrip("/"):
            return server
    known = ", ".join(str(address_of(server)) for server in servers)
    raise InferenceRefused(404, f"no server at {base_url}; there is {known}")
