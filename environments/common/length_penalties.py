"""Length penalty for groups whose answers are all right: shorter answers score higher.

Up to a share of ``max_token_length`` an answer scores 1.0. Beyond it the score falls linearly to
0.0 at ``max_token_length``. Lengths are counted over whole sequences, like the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import ConfigError


@dataclass(frozen=True)
class ThresholdLengthPenaltyConfig:
    """Example: (2048, 0.5) scores 1.0 up to 1024 tokens, 0.5 at 1536 and 0.0 at 2048."""

    max_token_length: int
    threshold_percentage: float = 0.5  # share of max_token_length, 0 <= it < 1

    def __post_init__(self) -> None:
        if self.max_token_length < 1 or not 0 <= self.threshold_percentage < 1:
            raise ConfigError(
                "a length penalty needs max_token_length >= 1 and a threshold_percentage from "
                f"0 to below 1, not {self.max_token_length} and {self.threshold_percentage}"
            )


def length_scores(lengths: Sequence[int], config: ThresholdLengthPenaltyConfig) -> list[float]:
    """1.0 up to the threshold, 0.0 from ``max_token_length`` on, linear in between."""
    free = config.max_token_length * config.threshold_percentage
    over = [(length - free) / (config.max_token_length - free) for length in lengths]
    return [1.0 - min(1.0, max(0.0, share)) for share in over]


def brevity_scores(rewards: list[float], lengths: list[int], max_length: int) -> list[float]:
    """The rewards; if all are 1.0, lower scores for sequences beyond half of ``max_length``.

    [1, -1] is unchanged. Two right answers of 50 and 75 tokens, with a limit of 100, get
    [1.0, 0.5].
    """
    if all(reward == 1.0 for reward in rewards):
        return length_scores(lengths, ThresholdLengthPenaltyConfig(max_length))
    return rewards


class ThresholdLengthPenaltyCalculator:
    """Applies the penalty to scored groups."""

    def __init__(self, config: ThresholdLengthPenaltyConfig) -> None:
        self.config = config

    def apply_length_penalties(self, scores: Any) -> Any:
        """Set the group's scores by length if all scores are 1.0, and return the group.

        ``scores`` is a scored group, a mapping with ``tokens`` and ``scores``; it is changed
        in place. A group with a lower score is unchanged, because there brevity would compete
        with correctness.
        """
        raw = scores["scores"]
        if len(raw) > 0 and all(score == 1.0 for score in raw):
            scores["scores"] = length_scores(
                [len(row) for row in scores["tokens"]], self.config
            )
        return scores
