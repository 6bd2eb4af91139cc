"""Numbers of examples of a property: a quarter in `make test`, all in `make campaign`.

`pytest --hypothesis-profile quarter` (the usual one), `whole`, or `random` (nightly: as many as
`whole`, drawn anew). tests/conftest.py registers them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

WHOLE = 100  # examples of a property that names no number


def register_profiles() -> None:
    """Load ``quarter``.

    A test fails by a result, never by its time or by the luck of a draw: each run draws the same
    examples, and no example has a time limit, since a loaded machine may need long.
    """
    untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    same = {**untimed, "derandomize": True, "database": None}
    settings.register_profile("quarter", **same, max_examples=WHOLE // 4)
    settings.register_profile("whole", **same, max_examples=WHOLE)
    settings.register_profile("random", **untimed, max_examples=WHOLE)
    settings.load_profile("quarter")


def examples(whole: int, **more: Any) -> settings:
    """Settings of a property with ``whole`` examples, or the profile's share of them."""
    return settings(
        max_examples=max(1, whole * settings.default.max_examples // WHOLE), **more
    )
