"""Limits of checks, and those that an author replaces with a reason."""

from __future__ import annotations

from atroposlib.envs.function_env.card import Card
from atroposlib.validation.bounds import DEFAULTS, Bound, bound_of, unknown_bounds

CARD = Card(
    "text", "here", "MIT", str, bounds={"swap.fails": (0.5, "two options"), "x": (1, "")}
)


def test_an_author_may_replace_a_limit_and_nothing_else():
    assert bound_of("swap.fails", CARD) == Bound(0.5, "two options")
    assert bound_of("many.fails", CARD) == bound_of("many.fails", None) == Bound(0.5)
    assert unknown_bounds(CARD) == ["x"] and unknown_bounds(None) == []


def test_every_check_has_a_limit():
    from atroposlib.validation.replies import REPLY_CHECKS
    from atroposlib.validation.validate import LOOKS

    assert DEFAULTS.keys() == REPLY_CHECKS.keys() | LOOKS.keys() | {"signal", "tokens"}
