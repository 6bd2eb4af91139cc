"""Curves of several runs in a chart, with numbers computed by hand."""

from __future__ import annotations

from atroposlib.workbench.overlay import (
    MAX_POINTS,
    band_of,
    curve_keys,
    points_of,
    sparse_xs,
    value_at,
    xs_of,
)

ROWS = [
    {"step": 1, "reward_mean": 0.0, "completion_tokens": 10, "tokens": 99},
    {"step": 2, "reward_mean": None, "completion_tokens": 20},
    {"step": 4, "reward_mean": 1.0, "completion_tokens": 30, "env/exact": 0.5},
]


def test_a_row_lies_at_its_step_and_at_the_tokens_until_its_end():
    assert xs_of(ROWS, "step") == [1, 2, 4]
    assert xs_of(ROWS, "tokens") == [10, 30, 60]
    assert xs_of([{"tokens": 5}, {}], "tokens") == [5, 5]


def test_points_are_rows_with_a_finite_value():
    rows = [*ROWS, {"step": 5, "reward_mean": float("nan")}]
    assert points_of(rows, "reward_mean", "step") == [(1, 0.0), (4, 1.0)]
    assert points_of(rows, "reward_mean", "tokens") == [(10, 0.0), (60, 1.0)]


def test_a_value_lies_on_the_line_between_two_points():
    assert value_at([(0, 0.0), (10, 1.0)], 2.5) == 0.25
    assert value_at([(0, 0.0), (10, 1.0)], 11) is None
    assert value_at([], 0) is None


def test_a_band_has_mean_lowest_and_highest_of_all_curves():
    low, high = [(1.0, 0.0), (2.0, 2.0), (3.0, 3.0)], [(1.0, 1.0), (2.0, 4.0)]
    assert band_of([low, high]) == [(1, 0.5, 0, 1), (2, 3, 2, 4)]


def test_curves_with_other_places_are_read_between_their_points():
    a, b = [(0.0, 0.0), (10.0, 10.0)], [(5.0, 1.0), (15.0, 3.0)]
    assert band_of([a, b]) == [(5, 3, 1, 5), (10, 6, 2, 10)]


def test_curves_that_do_not_overlap_have_no_band_and_a_curve_is_its_own():
    assert band_of([[(1.0, 0.0)], [(2.0, 0.0)]]) == []
    assert band_of([[(1.0, 0.5)], []]) == [(1, 0.5, 0.5, 0.5)]
    assert band_of([]) == []


def test_many_points_are_thinned_to_the_bound_with_both_ends():
    xs = sparse_xs(range(10_000))
    assert len(xs) == MAX_POINTS and (xs[0], xs[-1]) == (0, 9999)


def test_reward_and_numbers_of_the_environment_come_first():
    rows = [{"step": 1, "zeta": 1, "entropy": 1, "env/exact": 0, "reward_mean": 0, "time": 1}]
    assert curve_keys([rows, []]) == ["reward_mean", "env/exact", "entropy", "zeta"]
