"""The original's import path of :mod:`atroposlib.generation.engines.harness`."""

from atroposlib.generation.engines.harness import (
    ServerHarness,
    create_chat_completion,
    create_completion,
)
