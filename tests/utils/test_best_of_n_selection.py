"""Selection by two criteria."""

from __future__ import annotations

import numpy as np
import pytest

from atroposlib.utils.best_of_n_selection import select_best_index


@pytest.mark.parametrize(
    ("primary", "secondary", "options", "best"),
    [
        ([1.0, 3.0, 2.0], [0, 0, 0], {}, 1),
        ([1.0, 3.0, 3.0], [0, 9, 5], {}, 2),
        ([3.0, 3.0], [5, 5], {}, 0),
        ([1.0, 3.0, 1.0], [2, 0, 1], {"primary_higher_is_better": False}, 2),
        ([3.0, 3.0], [5, 9], {"secondary_lower_is_better": False}, 1),
        (np.array([1, 2]), np.array([0, 0]), {}, 1),
    ],
)
def test_the_best_candidate_is_selected_and_ties_are_broken(primary, secondary, options, best):
    assert select_best_index(primary, secondary, **options) == best


@pytest.mark.parametrize(
    ("primary", "secondary"), [([], []), ([1.0], []), ([float("nan")], [1.0])]
)
def test_empty_and_incomparable_candidates_are_rejected(primary, secondary):
    with pytest.raises(ValueError):
        select_best_index(primary, secondary)
