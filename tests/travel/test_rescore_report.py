"""The report of a rescored run."""

from __future__ import annotations

import pytest

from atroposlib.travel.comparison import Rescored, add_advantages, compare
from atroposlib.travel.rescore_report import report_lines, report_page, span_text
from example_trainer.settings.loss import AdvantageSettings


def comparison_of(old, new):
    rows = [
        Rescored(5, row, "sums", "a", 3, 3, 5, *rewards)
        for row, rewards in enumerate(zip(old, new))
    ]
    add_advantages(rows, AdvantageSettings())
    return compare(rows, 20)


@pytest.mark.parametrize(
    ("steps", "text"),
    [([], ""), ([3], "3"), ([3, 4, 5], "3-5"), ([1, 3, 4, 9], "1, 3-4, 9")],
)
def test_steps_in_a_row_are_joined(steps, text):
    assert span_text(steps) == text


def test_unknown_figures_are_dashes_and_never_zeros():
    lines = report_lines(comparison_of([1.0, None], [None, 1.0]), [])
    (row,) = [line for line in lines if line.startswith("all")]
    assert row.split() == [
        "all",
        "2",
        *["-", "+-", "-"] * 2,
        *"---",
        "0",
        "of",
        "0",
        "0",
        "of",
        "0",
    ]


def test_text_of_a_model_reaches_neither_terminal_nor_page_raw():
    comparison = comparison_of([1.0, 0.0], [0.0, 1.0])
    comparison.largest[0].item = "\x1b[2J"
    assert "\x1b" not in "\n".join(report_lines(comparison, []))
    hostile = "</script><script>alert(1)</script>"
    records = {
        (5, row): {"messages": None, "prompt": hostile, "answer": hostile} for row in range(2)
    }
    text = report_page(comparison, records, hostile, [hostile]).decode()
    assert hostile not in text and "\\u003cscript" in text
    assert text.count("new") and '"old":1.0' in text
