"""The bookkeeping of the benchmarks, with numbers worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from apibench.figures import (
    Better,
    Figure,
    Results,
    Section,
    Target,
    Verdict,
    at_most,
    growth,
    times,
)
from apibench.tables import BEGIN, END, cell_text, page, summary, table, with_page


def cost(**more):
    return Figure(what="POST", unit="ms", ours=(4.0, 5.0), naive=(30.0, 20.0), **more)


def rate(**more):
    return Figure(
        what="flow",
        unit="MB/s",
        ours=(60.0, 90.0),
        naive=(6.0, 3.0),
        better=Better.MORE,
        **more,
    )


def results(*figures):
    section = Section(title="Posts", method="How.", figures=figures)
    return Results("2 cores", "2026-01-02", "full", (0.1, 2.0), (section,))


def test_a_cost_is_the_minimum_over_its_repeats():
    assert cost().best(cost().ours) == 4.0
    assert cost().ratio == 20.0 / 4.0
    assert cost().spread == (20.0 / 5.0, 30.0 / 4.0)


def test_a_higher_rate_is_better():
    assert rate().ratio == 90.0 / 6.0
    assert rate().spread == (60.0 / 6.0, 90.0 / 3.0)


def test_a_ratio_of_exactly_the_target_meets_it():
    assert cost(target=times(5)).verdict is Verdict.MET
    assert cost(target=times(5.1)).verdict is Verdict.MISSED
    assert cost().verdict is Verdict.NONE


def test_an_absolute_target_ignores_the_naive_figure():
    assert cost(target=at_most(4)).verdict is Verdict.MET
    assert cost(target=at_most(3.9)).verdict is Verdict.MISSED
    nothing_lost = Figure("lost", "groups", ours=(0.0,), naive=(0.0,), target=at_most(0))
    assert nothing_lost.verdict is Verdict.MET


def test_a_missing_measurement_misses_its_target():
    assert Figure("x", "s", ours=(), target=at_most(1)).verdict is Verdict.MISSED
    assert Figure("x", "s", ours=(1.0,), target=times(1)).verdict is Verdict.MISSED


def test_a_cost_of_zero_gives_a_finite_ratio():
    free = Figure("lost", "groups", ours=(0.0,), naive=(3.0,), target=times(2))
    assert free.ratio is None
    assert free.verdict is Verdict.MISSED


def test_growth_below_the_noise_counts_as_none():
    assert growth([1.0, 1.1, 1.3], noise=0.5) == pytest.approx(1.8 / 1.5)
    assert growth([0.0, 0.0], noise=0.2) == 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "0"), (0.012345, "0.0123"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_a_number_is_shown_with_its_significant_digits(value, text):
    assert cell_text(value) == text


def test_a_table_omits_empty_columns():
    lines = table(results(cost(target=times(5))).sections[0]).splitlines()
    assert lines == [
        "| what | unit | ours | naive | ratio (pairs) | target |  |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| POST | ms | 4 | 20 | 5x (4-7.5) | >= 5x | met |",
    ]


def test_the_summary_lists_the_missed_targets():
    slow = Figure("GET", "s", ours=(2.0,), target=at_most(1))
    assert summary(results(cost(target=times(5)), slow, rate())) == (
        "1 of 2 targets met; missed: GET."
    )


def test_results_round_trip_through_their_file():
    before = results(cost(target=times(5)), rate(target=Target(at_most=3.0)))
    after = msgspec.json.decode(msgspec.json.encode(before), type=Results)
    assert after == before
    assert page(after) == page(before)


def test_only_the_generated_part_of_the_page_is_replaced():
    readme = f"# Title\n\n{BEGIN}\nold\n{END}\n\nby hand\n"
    once = with_page(readme, "new")
    assert once == f"# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nby hand\n"
    assert with_page(once, "new") == once


@pytest.mark.parametrize(
    "readme", ["nothing", f"{BEGIN}", f"{END}\n{BEGIN}", f"{BEGIN}{END}{END}"]
)
def test_a_page_without_markers_is_left_unchanged(readme):
    with pytest.raises(ValueError):
        with_page(readme, "new")
