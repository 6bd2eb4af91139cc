"""Limits of each check, which ``Card(bounds=...)`` may replace with a reason.

Card(..., bounds={"swap.fails": (0.5, "two options"), "leak.prompt": (None, "the task is to copy")})
"""

from __future__ import annotations

from typing import NamedTuple

from atroposlib.envs.function_env.card import Card

SLACK = 0.05  # slack for scores of replies that deserve nothing
# Shares of the way from the floor to the best score, or as the line gives it.
DEFAULTS: dict[str, float] = {
    "data.loads": 0,
    "data.split": 0,  # tasks that are trained and held out
    "gold.passes": 0.01,  # below the best score
    "null.fails": SLACK,
    "echo.fails": SLACK,
    "garbage.fails": SLACK,
    "constant.fails": 0.6,  # mean
    "swap.fails": 0.2,  # mean
    "many.fails": 0.5,
    "wrong.fails": SLACK,
    "judge.injection": SLACK,
    "leak.prompt": 0.1,  # share of the tasks
    "score.repeat": 1e-9,  # largest difference
    "score.order": 1e-9,
    "episode.repeat": 0,  # episodes that differ
    "score.group": 1e-9,
    "score.length": 0.1,  # largest change
    "score.finite": 0.01,  # above the best score
    "score.time": 1.0,  # seconds, 95th percentile
    "failure.raises": 0,
    "tools.match": 0,
    "leaves.nothing": 0.1,  # things left per episode
    "timeout": 5.0,  # seconds from a cancellation to the end
    "signal": 0.05,  # least distance of the mean from floor and best
    "tokens": 0.05,  # share of truncated replies
}


class Bound(NamedTuple):
    """A limit; ``value`` None: the check is left out. ``reason`` is the author's."""

    value: float | None
    reason: str = ""


def bound_of(check: str, card: Card | None) -> Bound:
    """The limit of ``check`` in this environment."""
    own = card.bounds.get(check) if card is not None else None
    return Bound(DEFAULTS[check]) if own is None else Bound(*own)


def unknown_bounds(card: Card | None) -> list[str]:
    """Names in the card that are no check."""
    return [] if card is None else [name for name in card.bounds if name not in DEFAULTS]
