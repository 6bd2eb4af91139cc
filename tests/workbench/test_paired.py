"""Two sides compared item by item, with numbers computed by hand."""

from __future__ import annotations

import pytest

from atroposlib.workbench.paired import (
    ItemResult,
    bootstrap_interval,
    comparison_lines,
    comparison_of,
)


def items(**scores):
    return {
        name: ItemResult(i, values, [10 * (i + 1)] * len(values), ["stop"] * len(values))
        for i, (name, values) in enumerate(scores.items())
    }


A = items(x=[1.0, 0.0], y=[0.0, 0.0], z=[1.0, 1.0], failed=[])
B = items(z=[0.0, 0.0], y=[1.0, 1.0], x=[1.0, 0.0], failed=[1.0])


def test_means_are_paired_by_item():
    assert comparison_of(A, B, 1.0) == {
        "items": 3,
        "unscored": 1,
        "mean_a": 0.5,
        "mean_b": 0.5,
        "difference": 0.0,
        "low": -1.0,  # of z thrice with (1/3)^3 = 0.037
        "high": 1.0,
        "better": 1,
        "worse": 1,
        "only_a": [[2, "z"]],
        "only_b": [[1, "y"]],
        "length_a": 20.0,
        "length_b": 20.0,
        "finish_a": {"stop": 6},
        "finish_b": {"stop": 6},
    }


def test_the_interval_is_that_of_all_resamples_of_a_small_case():
    # Of {0, 1} the mean is 0, 1/2, 1 with probability 1/4, 1/2, 1/4; of {0, 0, 0, 1} it is
    # 0 with (3/4)^4 = 0.32, 3/4 or more with 4 (3/4) / 4^3 + 1 / 4^4 = 0.051, 1 with 0.004.
    assert bootstrap_interval([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 0.0, 0.0, 1.0]) == (0.0, 0.75)
    assert bootstrap_interval([0.5] * 9) == (0.5, 0.5)
    assert bootstrap_interval([1.0]) == (None, None)


def test_the_interval_of_many_items_is_that_of_the_normal_law():
    low, high = bootstrap_interval([0.0, 1.0] * 200)  # standard error 0.5 / sqrt(400) = 0.025
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.003)


def test_long_lists_and_control_characters_are_cut_on_the_terminal():
    many = {f"item {i}\x1b[2J": ItemResult(i, [1.0], [1]) for i in range(25)}
    none = {name: ItemResult(one.index, [0.0], [1]) for name, one in many.items()}
    lines = comparison_lines({"metric": "exact", **comparison_of(many, none, 1.0)})
    assert "solved by A only: 25" in lines and "  and 5 more (--json has all)" in lines
    assert not any("\x1b" in line for line in lines)
    assert "  3: item 3\\x1b[2J" in lines
    rest = {"metric": "exact", **comparison_of(many, none, 1.0)}
    assert "  item 3\\x1b[2J" in comparison_lines(rest, with_places=False)
