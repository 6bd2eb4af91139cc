"""The original's import path of :mod:`atroposlib.generation.sessions.remote`."""

from atroposlib.generation.sessions.remote import (
    MAX_CONNECTIONS,
    TIMEOUT_S,
    TOKEN_VARIABLE,
    ProxyManagedServer,
    create_proxy_session,
)

__all__ = [
    "MAX_CONNECTIONS",
    "ProxyManagedServer",
    "TIMEOUT_S",
    "TOKEN_VARIABLE",
    "create_proxy_session",
]
