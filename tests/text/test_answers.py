"""Where the answer of a reply is, and what texts and numbers decide about it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from atroposlib.text.answers import (
    as_number,
    boxed_answer,
    in_latex,
    plain_text,
    same_answer,
    stated_answer,
)
from tests.text.answer_pairs import RIGHT, WRONG


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{72}", "72"),
        (r"\boxed{1} no, \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{3} and \boxed{4", "3"),
        (r"\boxed {42}", "42"),
        (r"\boxed7.", "7"),
        (r"\boxed 7", "7"),
        (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        (r"\fbox{42}", "42"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1,2\right.}", r"\left\{1,2\right."),
        (r"\boxed{5}, as I put it in \boxed{}", "5"),
        ("72", None),
        (r"\boxed{", None),
        ("", None),
    ],
)
def test_the_last_complete_box_is_the_answer(text, answer):
    assert boxed_answer(text) == answer


def test_the_later_of_a_box_and_a_line_of_hashes_is_stated():
    assert stated_answer("#### 4\n\\boxed{2}") == "2"
    assert stated_answer("\\boxed{2}\n#### 4") == "4"
    assert stated_answer("\\boxed{2}\n####\n") == "2"
    assert stated_answer("none") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", 72),
        ("-3.50", Decimal("-3.5")),
        ("$1,234", 1234),
        (r"\$ 5", 5),
        ("18.", 18),
        ("50%", 50),
        (".5", Decimal("0.5")),
        ("- 5", -5),
        ("\u22125", -5),
        ("12 345", 12345),
        (r"12\,345", 12345),
        ("12{,}345.5", Decimal("12345.5")),
        ("2 3", None),
        ("12 34", None),
        ("1,2", None),
        ("72 apples", None),
        ("", None),
        (".", None),
        ("1e5", None),
    ],
)
def test_plain_numbers_are_read_with_their_separators(text, number):
    assert as_number(text) == number


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("12:00", "12:00", True),
        ("12:30", "12:00", None),
        ("2 3", "6", False),
        ("50%", "0.5", True),
        ("0.5", "50%", True),
        ("50%", "50", True),
        ("5%", "0.5", False),
        ("1e-7", "5e-7", None),
        ("0.0000001", "0.0000005", False),
        ("72.0000005", "72", True),
        ("1000001", "1000000", False),
        ("x", "y", None),
    ],
)
def test_texts_and_numbers_decide_where_they_can(answer, gold, same):
    assert same_answer(answer, gold, tolerance=1e-6) is same


def test_no_right_pair_is_called_wrong_and_no_wrong_one_right_without_mathematics():
    assert not [pair for pair in RIGHT if same_answer(*pair) is False]
    assert not [pair for pair in WRONG if same_answer(*pair) is True]


def test_text_is_compared_without_what_has_no_meaning():
    assert plain_text(r"$\left( \text{C} \right)$") == plain_text("(C)") == "C"
    assert plain_text(r"\dfrac{1}{2}") == plain_text(r" \frac{1}{2} . ")
    assert plain_text("2 3") != plain_text("23")


def test_a_mixed_number_is_a_sum():
    assert in_latex("2 3/4") == r"\frac{11}{4}"
    assert in_latex("-1 1/2") == r"-\frac{3}{2}"
    assert in_latex("2 3/0") == "2 3/0"
    assert in_latex("x") == "x"
