"""How far logprobs of equal weights may lie apart: by rounding, as it is found in the run.

    found --accepts--> True: learned from, so that the limit follows the rounding of the run
                 '---> False: other weights

In float32 rounding is far below what one step changes, and a fixed tolerance decides. In
bfloat16 a trained model rounds by 0.01 to 0.06 nats per token on average and by over 0.2 for one
token in a hundred, up to one in ten for short replies of a policy in training, while weights one
step old lie 0.2 apart on average, so that the mean and the share of such tokens decide, and never
the largest difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from example_trainer.settings.weights import LOGPROB_TOLERANCE
from example_trainer.weights.mismatch import Mismatch

# A rare token may be beyond where a router of experts flips; wrong weights move nearly all.
MAX_SHARE = {"float32": 0.01, "bfloat16": 0.25}
START_NATS = 0.1  # most mean of bfloat16 before anything was compared
LEAST_NATS = 0.02  # a lower mean is rounding, however little there was before
TIMES_USUAL = 3.0
MEMORY = 0.8  # share of the moving mean that a comparison leaves as it was


@dataclass
class Agreement:
    """Limits of a run, which it learns from comparisons that it accepts."""

    tolerance: float  # nats of one token
    max_share: float  # of tokens beyond it
    judges_mean: bool = False
    usual: float | None = None  # nats per token; None: nothing was compared yet

    @classmethod
    def of(cls, dtype: str, tolerance: float | None = None) -> Agreement:
        """Limits of a dtype; with a ``tolerance`` of the user at most 1 % lies beyond it."""
        if tolerance is not None:
            return cls(tolerance, MAX_SHARE["float32"])
        return cls(LOGPROB_TOLERANCE[dtype], MAX_SHARE[dtype], judges_mean=dtype != "float32")

    @property
    def most(self) -> float | None:
        """Largest mean of rounding, in nats per token; None: it is not judged."""
        if not self.judges_mean:
            return None
        return START_NATS if self.usual is None else max(LEAST_NATS, TIMES_USUAL * self.usual)

    def accepts(self, found: Mismatch, scale: float = 1.0) -> bool:
        """Whether ``found`` is rounding. A true result is learned from.

        Args:
            scale: of the differences: 1 / temperature where the logprobs were divided by it.
        """
        spare = 1 if self.judges_mean else 0  # of few tokens one may be such a rare one
        if found.beyond > scale * self.max_share * found.tokens + spare:
            return False
        if self.most is not None and found.mean > scale * self.most:
            return False
        if found.tokens and scale == 1.0:
            self._learn(found.mean)
        return True

    def _learn(self, mean: float) -> None:
        before = mean if self.usual is None else self.usual
        self.usual = MEMORY * before + (1 - MEMORY) * mean

    def __str__(self) -> str:
        limits = f"{self.max_share:.0%} of the tokens beyond {self.tolerance:g} nats"
        return limits if self.most is None else f"{limits}, mean {self.most:.3g}"
