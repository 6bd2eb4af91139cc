"""The original's import path of :mod:`atroposlib.generation.sessions.managed`."""

from atroposlib.generation.sessions.managed import (
    DummyManagedServer,
    ManagedServer,
    ManagedServerAdapter,
    SequenceNode,
)
