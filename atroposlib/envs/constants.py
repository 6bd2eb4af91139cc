"""The original's import path of :mod:`atroposlib.envs.settings.constants`."""

from atroposlib.envs.settings.constants import (
    ENV_NAMESPACE,
    HEARTBEAT_S,
    MAX_BACK_OFF_S,
    NAMESPACE_SEP,
    OPENAI_NAMESPACE,
    SERVER_MANAGER_NAMESPACE,
    STATUS_POLL_S,
)

__all__ = [
    "ENV_NAMESPACE",
    "HEARTBEAT_S",
    "MAX_BACK_OFF_S",
    "NAMESPACE_SEP",
    "OPENAI_NAMESPACE",
    "SERVER_MANAGER_NAMESPACE",
    "STATUS_POLL_S",
]
