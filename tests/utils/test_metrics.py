"""Summary statistics and percentiles."""

from __future__ import annotations

import numpy as np
import pytest

from atroposlib.utils.metrics import get_std_min_max_avg, percentile


def test_named_statistics_equal_values_computed_by_hand():
    metrics = get_std_min_max_avg("t", [1.0, 3.0], {"old": 0})
    assert metrics == {"old": 0, "t_mean": 2.0, "t_std": 1.0, "t_max": 3.0, "t_min": 1.0}
    assert get_std_min_max_avg("t", [], {}) == {}
    assert get_std_min_max_avg("t", np.array([2, 2]), {})["t_std"] == 0.0


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.5, 2), (0.75, 3), (0.95, 4), (1.0, 4)]
)
def test_a_percentile_is_a_value_of_the_data(share, value):
    assert percentile([4, 2, 1, 3], share) == value


@pytest.mark.parametrize(
    ("values", "share", "value"),
    [([3], 0.95, 3), (range(100), 0.95, 94), ([4, 0, 0, 0], 0.75, 0)],
)
def test_a_percentile_of_repeated_and_of_many_values(values, share, value):
    assert percentile(values, share) == value
