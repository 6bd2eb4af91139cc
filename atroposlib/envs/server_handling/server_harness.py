"""The original's import path of :mod:`atroposlib.generation.engines.harness`."""

from atroposlib.generation.engines.harness import (
    ServerHarness,
    T,
    chat_key,
    create_chat_completion,
    create_completion,
)

__all__ = [
    "ServerHarness",
    "T",
    "chat_key",
    "create_chat_completion",
    "create_completion",
]
