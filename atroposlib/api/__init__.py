"""The rollout API: scored groups come in, exact batches go out.

    registry of envs --.
    scored groups ---> queue (store) ---> exact batch (batching) ---> trainer
                          ^                                             |
                          '------------------- ack ---------------------'

``records`` nouns; ``batching``, ``mix``, ``allocation``, ``staleness``, ``admission`` pure
decisions; ``store`` durability; ``run_state`` the run and its transitions, ``run_keeper``
how they are saved; ``posts``, ``claims``, ``leases`` the verbs, ``service`` all of them
without HTTP; ``intake`` and ``deliveries`` bytes in and out; ``access`` and ``hosts`` who
may call; ``routes_*`` HTTP; ``server`` the app.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Lazy, so that importing the pure parts does not build a web application.
    if name == "app":
        from atroposlib.api import server

        return server.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
