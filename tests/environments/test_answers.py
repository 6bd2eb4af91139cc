"""What a reply answers, by table."""

from __future__ import annotations

import pytest

from atroposlib.environments.common import answers


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("B", "B"),
        (" **(C)** ", "C"),
        ("B.", "B"),
        ("First A, then D.\nAnswer: D", "D"),
        ("answer: A\nNo, the answer is **B**", "B"),
        ("The answer is (C).", "C"),
        ("<think>Answer: A</think>Answer: B", "B"),
        ("The answer is a matter of taste", None),
        ("Answer: b", None),
        ("A or B", None),
        ("Answer: Apples", None),
        ("So it is \\boxed{C}", "C"),
        ("\\boxed{\\text{(C)}} and not B", "C"),
        ("The answer is option C.", "C"),
        ("The answer is “C”.", "C"),
        ("option C", "C"),
        ("The correct choice is **B**, because option A is wrong", "B"),
        ("<think>Answer: A", None),
        ("a B would do</think>The answer is C", "C"),
        ("", None),
    ],
)
def test_the_letter_is_the_last_one_that_is_called_the_answer(reply, letter):
    assert answers.letter(reply) == letter


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("Paris", "Paris"),
        ("It is in France.\n**Answer:** Paris", "Paris"),
        ("Answer: Rome\nFinal answer: Paris ", "Paris"),
        ("<think>Answer: Rome</think>Paris", "Paris"),
        ("one line\nand another", None),
        ("", None),
    ],
)
def test_a_short_answer_is_the_last_line_of_that_name_or_the_only_line(reply, text):
    assert answers.short_answer(reply) == text


def test_words_are_compared_without_case_articles_and_punctuation():
    assert answers.exact("The Eiffel-Tower!", ["eiffel tower"]) == 1.0
    assert answers.exact("tower eiffel", ["eiffel tower"]) == 0.0
    assert answers.contains("It is the Eiffel Tower.", ["eiffel tower", "x"]) == 1.0
    assert answers.contains("Eiffels tower", ["eiffel"]) == 0.0


@pytest.mark.parametrize(
    ("given", "gold", "same"),
    [
        ("314", "3.14", 0.0),
        ("5", "-5", 0.0),
        ("5", "\u22125", 0.0),
        ("12", "1/2", 0.0),
        ("330", "3:30", 0.0),
        ("5", ".5", 0.0),
        ("105", "10^5", 0.0),
        ("C", "C++", 0.0),
        ("C", "C#", 0.0),
        ("A", "B", 0.0),
        ("$1,000", "1000", 1.0),
        ("1000.0", "1,000", 1.0),
        ("It's 5.", "its 5", 1.0),
        ("U.S.", "US", 1.0),
        ("1990\u20131995", "1990-1995", 1.0),
        ("twenty-one", "Twenty one", 1.0),
    ],
)
def test_numbers_and_names_with_signs_are_compared_as_such(given, gold, same):
    assert answers.exact(given, [gold]) == same


def test_f1_is_that_of_the_closest_gold_answer():
    # 2 of 3 given words are among 2 of 4 gold words: 2 * 2 / (3 + 4); of the other: 2 * 1 / (3 + 1)
    golds = ["red green blue grey", "red"]
    assert answers.f1("red green white", golds) == pytest.approx(4 / 7)
    assert answers.f1("the", [""]) == 1.0
    assert answers.f1("red", []) == 0.0
