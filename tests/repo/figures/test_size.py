"""What the figures of size count."""

from __future__ import annotations

from tests.repo.figures import size
from tests.repo.figures.hand_written import repository_of


def test_a_file_is_long_from_301_lines_on():
    repository = repository_of(
        atroposlib__a="x = 1\n" * 300,
        atroposlib__b="x = 1\n" * 301,
        example_trainer__c="",
        environments__d="x = 1\n" * 400,
    )
    measured = size.long_files(repository)
    assert (measured.value, measured.items) == (33.3, ("atroposlib/b.py: 301",))


def test_a_folder_is_crowded_from_16_modules_on():
    fifteen = {f"atroposlib__x__m{n}": "" for n in range(15)}
    assert (
        size.crowded_source_folders(repository_of(**fifteen, atroposlib__x__INIT="")).value
        == 0
    )
    more = repository_of(**fifteen, atroposlib__x__more="", tests__x__test_more="")
    assert size.crowded_source_folders(more).items == ("atroposlib/x: 16",)
    assert size.crowded_test_folders(more).value == 0


def test_modules_and_lines_are_those_of_the_two_packages():
    repository = repository_of(
        atroposlib__a="x = 1\n\ny = 1\n", example_trainer__INIT="", scripts__b="x = 1\n"
    )
    assert size.module_count(repository).value == 2
    assert size.source_lines(repository).value == 3


def test_the_readme_is_measured_in_characters():
    assert size.readme_characters(repository_of(readme="A row.\n" + "b" * 93)).value == 100
