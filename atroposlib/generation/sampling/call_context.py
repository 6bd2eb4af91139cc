"""What a router tells the layers below about a call.

It travels beside the keyword arguments, not in them: backends of other people forward those
to their servers as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class CallContext:
    """``others_answer`` tells whether another server could take the call instead."""

    others_answer: Callable[[], bool] = lambda: False
    routing_key: str | None = None  # sent to gateways, which keep a session on one engine


_current: ContextVar[CallContext] = ContextVar("call_context", default=CallContext())


def current_call() -> CallContext:
    return _current.get()


@contextmanager
def calling(context: CallContext) -> Iterator[None]:
    """Everything awaited in the block, and every task started in it, sees ``context``."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
