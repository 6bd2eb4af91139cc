"""The original's import path of :mod:`atroposlib.testing.server_harness`."""

from atroposlib.testing.server_harness import (
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
