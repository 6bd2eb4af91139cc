"""Which server gets a call, how n is split, and how the parts become one completion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from atroposlib.generation.engines.base import APIServer

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

C = TypeVar("C", "ChatCompletion", "Completion")


def chunk_sizes(n: int, largest: int) -> list[int]:
    """n as chunks of at most ``largest``, the full ones first: 20 by 8 is [8, 8, 4]."""
    full, rest = divmod(n, largest)
    return [largest] * full + ([rest] if rest else [])


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
        [room(server, split) for server in servers],
        [is_up(server) for server in servers],
    )
    return servers[index]


def any_answers(servers: Sequence[APIServer]) -> bool:
    """Whether one of them is not known to be down; those that are get asked once more."""
    recheck(servers)
    return any(is_up(server) for server in servers)


def recheck(servers: Sequence[APIServer]) -> None:
    for server in servers:
        if isinstance(server, APIServer):
            server.health.recheck()


def is_up(server: APIServer) -> bool:
    """Not known to be down."""
    return bool(getattr(server, "server_healthy", True))


def room(server: Any, split: str) -> int:
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


def split_of(kwargs: Mapping[str, Any]) -> str:
    return str(kwargs.get("split") or "train")


@contextmanager
def session_on(server: Any) -> Iterator[Any]:
    """Count a session, so that the next one opens elsewhere."""
    if not isinstance(server, APIServer):
        yield server
        return
    server.sessions += 1
    try:
        yield server
    finally:
        server.sessions -= 1


def join_choices(parts: Iterable[C]) -> C:
    """One completion with the choices of all, numbered in order, and their usage summed."""
    rest: list[Any]
    first, *rest = parts
    if not rest:
        return first
    joined: Any = first.model_copy(deep=True)  # a backend may keep what it returned
    for part in rest:
        joined.choices.extend(part.choices)
        if joined.usage is not None and part.usage is not None:
            joined.usage.prompt_tokens += part.usage.prompt_tokens
            joined.usage.completion_tokens += part.usage.completion_tokens
            joined.usage.total_tokens += part.usage.total_tokens
    for i, choice in enumerate(joined.choices):
        choice.index = i
    return cast(C, joined)
