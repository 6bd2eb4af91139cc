"""What the figures of prose count."""

from __future__ import annotations

import pytest

from tests.repo.figures import prose
from tests.repo.figures.hand_written import repository_of


def test_code_and_identifiers_are_not_prose():
    text = '"""Whatever `says` does, ``for ever`` counts."""\nsays = 1  # x.says() told\n'
    measured = prose.loose_words(repository_of(atroposlib__a=text))
    assert measured.items == (
        "atroposlib/a.py:1: Whatever",
        "atroposlib/a.py:2: told",
    )


def test_loose_words_of_tests_are_a_figure_of_their_own():
    repository = repository_of(tests__test_a="# The trainer says so.\n")
    assert prose.loose_words(repository).items == ()
    assert prose.loose_words_in_tests(repository).value == 250


def test_words_that_stand_for_a_noun_count_in_docstrings_and_comments():
    text = '"""One row, such as `other` rows."""\none = "others"  # Rows themselves\n'
    measured = prose.pronouns(repository_of(atroposlib__a=text))
    assert measured.items == ("atroposlib/a.py:1: One", "atroposlib/a.py:1: such")


@pytest.mark.parametrize(
    "docstring, is_counted",
    [
        ("What a row holds.", True),
        ("The same, in bytes.", True),
        ("It returns a row.", True),
        ("Rows of a batch. It may be empty.", False),
        ("Itemised rows.", False),
        ("Whether a row is whole.", False),
    ],
)
def test_a_docstring_opens_with_a_noun_or_an_imperative(docstring, is_counted):
    text = f'def f():\n    """{docstring}"""\n'
    measured = prose.pronoun_openings(repository_of(atroposlib__a=text))
    assert measured.value == 100 * is_counted


@pytest.mark.parametrize(
    "comment, is_counted",
    [
        ("x = 1  # of a row", True),
        ("x = 1  # until the server answers", True),
        ("x = 1  # seconds until the server answers", False),
        ("x = 1  # Of all rows, the first is the longest.", False),
        ("# The first row\n# of the batch is the longest.", False),
        ("# The first row.\n\n# of the batch", True),
        ("x = 1  # The first row\n# of the batch", True),
    ],
)
def test_a_comment_that_only_continues_a_sentence_is_a_fragment(comment, is_counted):
    measured = prose.fragments(repository_of(atroposlib__a=f"{comment}\n"))
    assert len(measured.items) == is_counted


def test_instructions_to_tools_are_no_comments():
    text = "# of a row\n\nx = 1  # noqa: E501\ny = 1  # type: ignore[misc]\n#!/bin/sh\n"
    assert prose.fragments(repository_of(atroposlib__a=text)).value == 100
