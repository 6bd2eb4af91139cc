"""Lag of a server: whether it still holds the weights of the check before.

A mean distance cannot tell where a step moves logprobs by less than bfloat16 rounds them, which it
does at the learning rates of large models. The two sets of weights can be compared with each other:
rows of the check before are scored again, and each token of the server lies nearer to the trainer's
logprob of now (n) or of then (b):

    r = ((s - n)^2 - (s - b)^2) / ((s - n)^2 + (s - b)^2 + (n - b)^2)

r is 1/2 where a token has exactly the logprob of then, -1/2 where it has that of now, and near 0
where the weights moved it by less than it is rounded; rare tokens, which move and round by far more
than others, count no more. The score is the sum of r by the root of the sum of r^2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ScoredRows:
    """Token sequences, with the trainer's logprobs of all tokens but the first of each."""

    sequences: Sequence[list[int]] = ()
    logprobs: Sequence[Sequence[float]] = field(default=(), repr=False)

    def first(self, count: int) -> ScoredRows:
        return ScoredRows(self.sequences[:count], self.logprobs[:count])


@dataclass(frozen=True)
class ServerLag:
    """Tokens of a server between the logprobs of the check before and those of now."""

    tokens: int = 0  # tokens that moved
    older: int = 0  # nearer to the check before
    score: float = 0.0  # above 0: the server holds the weights of then

    def __str__(self) -> str:
        return f"{self.older} of {self.tokens} tokens are nearer to the check before"


def lag_of(
    before: ScoredRows, new: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> ServerLag:
    """The lag of a server by its logprobs of the rows of the check before; further rows may follow.

    Where a step moves nothing, r is as often positive as negative. The score then exceeds x with a
    probability of at most exp(-x^2 / 2), however r is distributed (Efron 1969). The score of a
    server behind is at most the root of the number of tokens.

    Args:
        before: the trainer's logprobs at the check before.
        new: the trainer's logprobs now, by row and token.
        theirs: the server's.
    """
    rows = _distinct_tokens(before, new, theirs)
    tokens = np.concatenate([np.empty((3, 0)), *rows], axis=1)  # (3, N)
    new_N, before_N, theirs_N = tokens[:, np.isfinite(tokens).all(0)]
    moved_N = (new_N - before_N) ** 2
    to_new_N, to_before_N = (theirs_N - new_N) ** 2, (theirs_N - before_N) ** 2
    has_moved_N = moved_N > 0
    r_N = (to_new_N - to_before_N)[has_moved_N]
    r_N /= (to_new_N + to_before_N + moved_N)[has_moved_N]
    size = float(np.sqrt(r_N @ r_N))
    score = float(r_N.sum()) / size if size else 0.0
    return ServerLag(len(r_N), int((r_N > 0).sum()), score)


def _distinct_tokens(
    before: ScoredRows, new: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> Iterator[NDArray[np.float64]]:
    """Logprobs (3, T) of now, then and the server, of each row after what earlier rows share.

    A system prompt has the same rounding in every row, and would count as many tokens.
    """
    sides = zip(before.sequences, new, before.logprobs, theirs)
    for i, (sequence, *row) in enumerate(sides):
        earlier = before.sequences[:i]
        shared = max((_common_prefix(sequence, tokens) for tokens in earlier), default=0)
        if len({len(side) for side in row}) == 1:
            yield np.array(row, np.float64)[:, max(0, shared - 1) :]


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that both sequences begin with."""
    pairs = enumerate(zip(a, b))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
