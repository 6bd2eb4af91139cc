"""Which server gets a call, how n is split, and how the parts become one completion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from atroposlib.envs.server_handling.server_baseline import APIServer

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


def split_of(kwargs: Mapping[str, Any]) -> str:
    return str(kwargs.get("split") or "train")


@contextmanager
def session_on(server: APIServer) -> Iterator[APIServer]:
    """Count a session, so that the next one opens elsewhere."""
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
