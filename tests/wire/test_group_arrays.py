"""Groups whose arrays are read in chunks."""

from __future__ import annotations

import numpy as np

from atroposlib.wire.group_arrays import Place, TakenNumbers


def test_numbers_are_taken_across_chunks():
    numbers = TakenNumbers(iter([np.array([1, 2]), np.array([3]), np.array([4, 5, 6])]))
    portions = [numbers.take(n).tolist() for n in (0, 1, 4, 1)]
    assert portions == [[], [1], [2, 3, 4, 5], [6]]


def test_a_position_of_the_flat_arrays_is_named_by_row_and_token():
    place = Place(np.array([2, 3]))
    assert [place(flat) for flat in range(5)] == [
        "[0][0]",
        "[0][1]",
        "[1][0]",
        "[1][1]",
        "[1][2]",
    ]
