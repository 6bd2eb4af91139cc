"""How far logprobs of equal weights may lie apart: by rounding, as it is found in the run.

    found --judge--> True: learned from, so that the limit follows the rounding of the run
                 '---> False: different weights

In float32 rounding is far below what a step changes, and a fixed tolerance decides. In
bfloat16 a trained model rounds by 0.01 to 0.06 nats per token on average and single tokens by
far more: the mean and the share of these tokens decide, and never the largest difference.

SmolLM2-135M in the quickstart, local server and trainer, 40 steps of five seeds, mean nats of a
batch: correct weights 0.0002 to 0.046 and once 0.069, weights a step old 0.08 to 0.48 in the
first 20 steps. A rare batch rounds like a stale batch, but the next does not, while a server
that is behind stays behind: a mean above the limit is refused the second time in a row.

Given texts, prompts among them, are harder to guess and round by more than tokens that the
policy sampled: 0.013 to 0.054 there, so that each kind of tokens has its own limit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import Enum

from example_trainer.settings.weights import LOGPROB_TOLERANCE
from example_trainer.weights.lag import ScoredRows, ServerLag
from example_trainer.weights.mismatch import Mismatch

logger = logging.getLogger(__name__)

# A rare token may be beyond where a router of experts flips; wrong weights move nearly all.
MAX_SHARE = {"float32": 0.01, "bfloat16": 0.25}
START_NATS = 0.1  # most mean of bfloat16 before anything was compared
TIMES_USUAL = 2.5
AT_ONCE_NATS = 0.2  # a mean above it and above twice the limit is refused the first time
# Evidence against a server: the scores of its lag, each less the allowance, summed over checks. A
# correct server exceeds it by chance once in a million checks, where a step moves nothing.
ALLOWANCE = 1.0
MOST_EVIDENCE = 7.0
MEMORY = 0.8  # share of the moving mean that a comparison leaves as it was


class Tokens(str, Enum):
    """Origin of the tokens of a comparison."""

    GIVEN = "given"  # texts that server and trainer both score
    SAMPLED = "sampled"  # tokens of a batch, with the logprobs of their sampler


# A lower mean, in nats, is rounding, however little there was before.
LEAST_NATS = {Tokens.GIVEN: 0.1, Tokens.SAMPLED: 0.03}


@dataclass
class Agreement:
    """Limits of a run, which it learns from comparisons that it accepts, and its last check."""

    tolerance: float  # nats of a token
    max_share: float  # share of tokens beyond it
    judges_mean: bool = False
    usual: dict[Tokens, float] = field(default_factory=dict)  # nats per token, so far
    evidence: dict[str, float] = field(default_factory=dict)  # sums of lags; keys: servers
    # Comparisons above their limit the last time.
    doubts: set[tuple[Tokens, str]] = field(default_factory=set)
    before: ScoredRows = ScoredRows()  # compared by the next check

    @classmethod
    def of(cls, dtype: str, tolerance: float | None = None) -> Agreement:
        """Limits of a dtype; with a ``tolerance`` of the user at most 1 % lies beyond it."""
        if tolerance is not None:
            return cls(tolerance, MAX_SHARE["float32"])
        return cls(LOGPROB_TOLERANCE[dtype], MAX_SHARE[dtype], judges_mean=dtype != "float32")

    def most(self, tokens: Tokens) -> float | None:
        """Largest mean of rounding, in nats per token; None: it is not judged."""
        if not self.judges_mean:
            return None
        if tokens not in self.usual:
            return START_NATS
        return max(LEAST_NATS[tokens], TIMES_USUAL * self.usual[tokens])

    def adopt(self, usual: dict[Tokens, float]) -> None:
        """Take the means that another rank has learned."""
        self.usual = usual

    def keep(self, rows: ScoredRows) -> None:
        """Remember the rows of a check for the next check; no rows leave those of before."""
        self.before = rows if rows.sequences else self.before

    def judge(
        self, mismatch: Mismatch, tokens: Tokens, scale: float = 1.0, source: str = ""
    ) -> bool:
        """Whether ``mismatch`` is rounding. A true result is learned from.

        Args:
            scale: of the differences: 1 / temperature where the logprobs were divided by it.
            source: the server, where it is known.
        """
        spare = 1 if self.judges_mean else 0  # a rare token may be among few tokens
        if mismatch.beyond > scale * self.max_share * mismatch.tokens + spare:
            return False
        most = self.most(tokens)
        if most is None:
            return True
        if mismatch.mean > scale * most:
            is_far = mismatch.mean > scale * max(AT_ONCE_NATS, 2 * most)
            if is_far or tokens not in self.usual or (tokens, source) in self.doubts:
                return False
            logger.warning(
                f"{mismatch} is above the usual of {tokens.value} tokens ({self.text(tokens)}):"
                " the run ends if the next comparison is, too"
            )
            self.doubts.add((tokens, source))
        else:
            self.doubts.discard((tokens, source))
        if mismatch.tokens and scale == 1.0:
            mean = min(mismatch.mean, most)
            before = self.usual.get(tokens, mean)
            self.usual[tokens] = MEMORY * before + (1 - MEMORY) * mean
        return True

    def judge_lag(self, lag: ServerLag, server: str) -> bool:
        """Whether a server may hold the new weights; False where it holds older weights.

        A cumulative sum (Page 1954): the evidence of several checks adds up, and that of a correct
        server, whose scores are below 0 or around it, falls back to 0.
        """
        evidence = self.evidence.get(server, 0.0) + lag.score - ALLOWANCE
        self.evidence[server] = max(0.0, evidence)
        return evidence <= MOST_EVIDENCE

    def text(self, tokens: Tokens) -> str:
        """The limits, for a message."""
        limits = f"{self.max_share:.0%} of the tokens beyond {self.tolerance:g} nats"
        most = self.most(tokens)
        return limits if most is None else f"{limits}, mean {most:.3g}"
