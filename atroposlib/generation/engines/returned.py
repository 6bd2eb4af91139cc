"""Tokens that inference servers returned, noted where the replies arrive.

    APIServer._call, remote sessions --note_returned--> receiver of the block (envs: TokenAccount)

A receiver is a context variable: it is called for each reply of the block, also in its tasks and
threads. Without a receiver nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from atroposlib.generation.engines.slots import generated_tokens
from atroposlib.generation.sampling.generation import UNKNOWN_VERSION, Generation


@dataclass(frozen=True)
class ReturnedTokens:
    """Completion tokens of a reply.

    ``server`` is the client that received it, None if the tokens are of the trained model in
    any case. ``version`` is the oldest policy version among the tokens. ``discarded`` is the
    reason why the client passes no token on, else empty.
    """

    server: Any
    split: str
    tokens: int
    version: int = UNKNOWN_VERSION
    discarded: str = ""


Receiver = Callable[[ReturnedTokens], None]
# Copied by calls that another task makes on behalf of a block.
token_receiver: ContextVar[Receiver | None] = ContextVar("token_receiver", default=None)


@contextmanager
def use_receiver(receiver: Receiver | None) -> Iterator[None]:
    """Call ``receiver`` for each reply of this block, in place of an outer receiver."""
    token = token_receiver.set(receiver)
    try:
        yield
    finally:
        token_receiver.reset(token)


def note_returned(server: Any, split: str, result: Any, discarded: str = "") -> None:
    """Note the completion tokens of ``result``, in any form that a server's client returns."""
    if (receiver := token_receiver.get()) is not None and (tokens := generated_tokens(result)):
        version = oldest_version(result)
        announced = getattr(server, "announced_version", None)
        if version == UNKNOWN_VERSION and isinstance(announced, int):
            version = announced
        receiver(ReturnedTokens(server, split, tokens, version, discarded))


def oldest_version(result: Any) -> int:
    """The oldest known version of the tokens of generations, else UNKNOWN_VERSION."""
    outputs: Sequence[Any] = result if isinstance(result, list) else ()
    known = [
        version
        for output in outputs
        if isinstance(output, Generation)
        for version in output.versions
        if version != UNKNOWN_VERSION
    ]
    return min(known, default=UNKNOWN_VERSION)
