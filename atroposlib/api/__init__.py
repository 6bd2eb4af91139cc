"""Rollout API: receives scored groups, delivers exact batches.

    registry of envs --.
    scored groups ---> queue (store) ---> exact batch (batching) ---> trainer
                          ^                                             |
                          '------------------- ack ---------------------'

``common`` records and the store protocol; ``decisions`` pure functions; ``store`` durable
storage; ``codec`` bodies of groups; ``guards`` authentication and limits; ``run`` the service
without HTTP; ``web`` routes; ``server`` the application.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Lazy, so that importing the pure parts does not build a web application.
    if name == "app":
        from atroposlib.api import server

        return server.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
