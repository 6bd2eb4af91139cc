from __future__ import annotations

import pytest

from atroposlib.wire.lineage import on_lineage


@pytest.mark.parametrize(
    ("version", "incarnation", "found"),
    [
        (30, 1, 30),  # up to the fork both lives have the same weights
        (12, 1, 12),
        (31, 1, 29),  # one step forth from the fork is as far as one step back
        (33, 1, 27),
        (31, 2, 31),  # of this life
        (31, 3, 31),
        (31, None, 31),  # a peer that counts no lives
        (-1, 1, -1),
    ],
)
def test_a_version_of_an_earlier_life_never_passes_for_one_of_this_life(
    version, incarnation, found
):
    assert on_lineage(version, incarnation, current=2, starts=[0, 30]) == found


def test_the_earliest_fork_since_the_version_counts():
    starts = [0, 30, 20, 25]  # of lives 1 to 4
    assert on_lineage(22, 2, current=4, starts=starts) == 18
    assert on_lineage(22, 3, current=4, starts=starts) == 22
    assert on_lineage(26, 3, current=4, starts=starts) == 24


def test_before_the_first_version_the_result_is_no_mark_of_an_unknown_one():
    assert on_lineage(1, 1, current=2, starts=[0, 0]) == -2
    assert on_lineage(2, 1, current=2, starts=[0, 0]) == -3


def test_lives_whose_start_was_forgotten_count_from_the_oldest_known_one():
    assert on_lineage(9, 1, current=2000, starts=[5, 7]) == 1
