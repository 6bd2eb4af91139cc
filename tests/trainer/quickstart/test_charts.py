from __future__ import annotations

import re

import pytest

from example_trainer.quickstart.charts import Series, line_chart, ticks


def test_a_chart_puts_the_highest_value_at_the_top():
    svg = line_chart([Series("x", ((1, 0.0), (2, 1.0)))], title="t", y_range=(0.0, 1.0))
    points = re.search(r'points="([^"]+)"', svg)
    assert points is not None
    (_, low), (_, high) = (map(float, point.split(",")) for point in points[1].split())
    assert low > high


def test_a_logarithmic_chart_leaves_out_zero_and_draws_powers_of_ten():
    svg = line_chart([Series("x", ((1, 0.0), (2, 1e-6), (3, 1e-3)))], title="t", log=True)
    assert ">1e-6<" in svg
    assert ">1e-3<" in svg
    assert line_chart([Series("x", ((1, 0.0),))], title="t", log=True) == ""


def test_a_single_point_and_a_flat_curve_can_be_drawn():
    assert "circle" in line_chart([Series("x", ((1, 0.5),))], title="t")
    assert "polyline" in line_chart([Series("x", ((1, 0.0), (2, 0.0)))], title="t")


@pytest.mark.parametrize(
    ("axis", "expected"),
    [((0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), ((1.0, 40.0), [10, 20, 30, 40])],
)
def test_ticks_are_round_numbers(axis, expected):
    assert ticks(axis) == pytest.approx(expected)
