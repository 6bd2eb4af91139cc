"""Blocks of a report."""

from __future__ import annotations

from atroposlib.run_status.heldout import HeldoutSample
from example_trainer.quickstart.blocks import (
    ANSWER_SHOWN,
    PROBLEMS_SHOWN,
    answers_table,
    chart,
    charts,
    curve,
    metric_curves,
    positive,
    series,
)

ROWS = [{"step": 1, "loss": 0.5, "time": 9.0}, {"step": 2, "loss": float("nan"), "kl": 0.1}]


def sample(step, completion="a", reward=0.0):
    return HeldoutSample(step, "what?", completion, "42", reward, None, step)


def test_a_curve_has_the_rows_with_the_column():
    assert curve(ROWS, "kl") == ((2.0, 0.1),)
    assert curve([{"a": 1}], "a") == ((1.0, 1),)  # a row without a step has its number


def test_all_numbers_but_steps_and_times_are_curves():
    found = metric_curves(ROWS)
    assert found.keys == ["kl", "loss"]
    assert found.series[0].points == [(2, 0.1)]


def test_a_chart_without_points_is_left_out():
    empty = chart("none", series("a", [(1, float("inf"))]))
    drawn = chart("some", series("a", []), series("b", [(1, 2.0)], dots=True), log=True)
    assert charts(empty, drawn) == [
        {
            "title": "some",
            "series": [{"label": "b", "points": [(1, 2.0)], "dots": True}],
            "log": True,
        }
    ]


def test_a_logarithmic_axis_has_positive_points_only():
    assert positive([(1, 0.0), (2, -1.0), (3, 1e-9)]) == [(3, 1e-9)]


def test_answers_stand_in_the_column_of_their_step():
    problems = [[sample(0, "x" * 999), sample(10, "42", 1.0)], [sample(10)]]
    *_, table = answers_table(problems * PROBLEMS_SHOWN)
    assert table["head"] == ["problem", "step 0", "step 10", "expected"]
    assert len(table["rows"]) == PROBLEMS_SHOWN
    _, first, last, expected = table["rows"][0]
    assert len(first["text"]) == ANSWER_SHOWN and first["text"].endswith("...")
    assert (last["note"], last["tone"], expected["text"]) == ("1.00", "good", "42")
    assert table["rows"][1][1] == ""
    assert answers_table([]) == []
