"""Selection of the best of several alternatives by two criteria."""

from __future__ import annotations

import math
from collections.abc import Sequence


def select_best_index(
    primary_scores: Sequence[float],
    secondary_scores: Sequence[float],
    primary_higher_is_better: bool = True,
    secondary_lower_is_better: bool = True,
) -> int:
    """Index of the best primary score; secondary scores break ties, then the earliest wins.

    Raises ValueError: no alternatives, unequal lengths, or a value that is not a number.
    """
    primary, secondary = primary_scores, secondary_scores
    if len(primary) == 0 or len(primary) != len(secondary):
        raise ValueError(
            f"primary has {len(primary)} values and secondary {len(secondary)}: "
            "as many of each are needed, and at least one"
        )
    if any(math.isnan(value) for values in (primary, secondary) for value in values):
        raise ValueError("nan compares with nothing; give a number for every alternative")
    first = 1 if primary_higher_is_better else -1
    second = -1 if secondary_lower_is_better else 1
    ranks = [(first * a, second * b) for a, b in zip(primary, secondary)]
    return max(range(len(ranks)), key=ranks.__getitem__)  # max returns the earliest
