"""The original's import path of :mod:`environments.common.length_penalties`."""

from environments.common.length_penalties import (
    ThresholdLengthPenaltyCalculator,
    ThresholdLengthPenaltyConfig,
    length_scores,
)
