"""The original's import path of :mod:`atroposlib.environments.common.length_penalties`."""

from atroposlib.environments.common.length_penalties import (
    ThresholdLengthPenaltyCalculator,
    ThresholdLengthPenaltyConfig,
    length_scores,
)
