"""Mask of the tokens with the highest entropy, arXiv 2506.01939 eq. 5.

    keep = entropy >= the (1 - entropy_share) quantile of all trained tokens of the minibatch

The paper trains on the fifth of the tokens where the policy decides between ways to go on, which
carries nearly all that is learned. Left-out tokens count in the divisor, as in TRL
(``top_entropy_quantile``), and entropies are taken before the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Rows of a group begin alike, so that their first tokens have one entropy, which separate passes
# round apart by about 1e-6: what is kept would depend on the packing.
TIE_NATS = 1e-4


def keep_top(entropies_R_T: Sequence[Sequence[float]], share: float) -> list[list[bool]]:
    """For every trained token whether it is kept: ``share`` of all, at least one, ties too.

    A NaN is kept and makes the loss NaN.

    >>> keep_top([[0.1, 2.0], [0.3, 1.0, 0.0]], 0.4)
    [[False, True], [False, True, False]]
    """
    numbers = [x for row in entropies_R_T for x in row if not math.isnan(x)]
    if not numbers:
        return [[True] * len(row) for row in entropies_R_T]
    # 0.55 x 100 is a little above 55.
    count = max(1, math.ceil(share * len(numbers) - 1e-9))
    least = sorted(numbers, reverse=True)[count - 1] - TIE_NATS
    return [[not x < least for x in row] for row in entropies_R_T]
