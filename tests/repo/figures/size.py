"""Sizes: of files, folders, packages and the README."""

from __future__ import annotations

from collections import Counter

from tests.repo.figures.measured import Measured, counted, share
from tests.repo.sources import PACKAGES, SOURCE, Repository, Source

MAX_FILES_IN_FOLDER = 15
LONG_FILE_LINES = 300
# Folders that are lists: of environments, each found by its name.
LIBRARY = ("environments", "tests/environments")


def crowded_folders(sources: list[Source]) -> Measured:
    """Folders that directly hold more than MAX_FILES_IN_FOLDER Python files.

    ``__init__`` and ``__main__`` stand for the folder itself and do not count.
    """
    names = (s.folder for s in sources if s.path.stem not in ("__init__", "__main__"))
    sizes = Counter(name for name in names if name not in LIBRARY)
    return counted(
        [f"{name}: {n}" for name, n in sorted(sizes.items()) if n > MAX_FILES_IN_FOLDER]
    )


def crowded_source_folders(repository: Repository) -> Measured:
    """Folders of the source with too many files."""
    return crowded_folders(repository.under(*SOURCE))


def crowded_test_folders(repository: Repository) -> Measured:
    """Folders of the tests with too many files."""
    return crowded_folders(repository.under("tests"))


def long_files(repository: Repository) -> Measured:
    """Percentage of the files of the two packages with more than LONG_FILE_LINES lines."""
    sizes = {str(s.path): len(s.text.splitlines()) for s in repository.under(*PACKAGES)}
    long = sorted((n, path) for path, n in sizes.items() if n > LONG_FILE_LINES)
    return share([f"{path}: {n}" for n, path in reversed(long)], len(sizes), 100)


def module_count(repository: Repository) -> Measured:
    """Python files of the two packages, ``__init__`` included."""
    return Measured(len(repository.under(*PACKAGES)))


def source_lines(repository: Repository) -> Measured:
    """Lines of Python in the two packages, blank ones included."""
    return Measured(sum(len(s.text.splitlines()) for s in repository.under(*PACKAGES)))


def readme_characters(repository: Repository) -> Measured:
    """Characters of README.md."""
    return Measured(len(repository.readme))


def docs_pages(repository: Repository) -> Measured:
    """Pages of docs/, generated ones included, without the decisions."""
    pages = [str(path) for path in repository.pages if path.parts[0] == "docs"]
    return counted([page for page in pages if not page.startswith("docs/decisions/")])
