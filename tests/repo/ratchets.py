"""Figures of the repository, each with the value that it should fall to.

    python -m tests.repo.ratchets                  every figure: today, bound, target
    python -m tests.repo.ratchets "folder circles" what one figure counts

The bounds are in tests/repo/test_ratchets.py. Nothing here depends on where a module lives:
classes are found by name, folders and modules by pattern.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the root is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.repo.figures import density, names, prose, size, structure
from tests.repo.figures.measured import Figure
from tests.repo.sources import load

FIGURES = {
    "crowded source folders": Figure(size.crowded_source_folders, 0),
    "crowded test folders": Figure(size.crowded_test_folders, 0),
    "files over 300 lines, %": Figure(size.long_files, 10),
    "modules": Figure(size.module_count, 475),
    "source lines": Figure(size.source_lines, 70_000),
    "README characters": Figure(size.readme_characters, 7_000),
    "docs pages": Figure(size.docs_pages, 30),
    "class names with two meanings": Figure(names.repeated_class_names, 0),
    "function names with several homes, %": Figure(names.repeated_function_names, 10),
    "base names used too often": Figure(names.repeated_base_names, 0),
    "functions named by a participle per 1,000": Figure(names.participle_functions, 15),
    "vague variables per 1,000 lines": Figure(names.vague_variables, 6),
    "loose words per 1,000": Figure(prose.loose_words, 0.5),
    "loose words in tests per 1,000": Figure(prose.loose_words_in_tests, 1),
    "pronouns per 1,000 words": Figure(prose.pronouns, 10),
    "docstrings that open with a pronoun, %": Figure(prose.pronoun_openings, 2),
    "fragment comments, %": Figure(prose.fragments, 5),
    "literals spread in place": Figure(density.spread_literals, 0),
    "tuples spread into a call": Figure(density.spread_tuples, 0),
    "file circles": Figure(structure.file_circles, 0),
    "folder circles": Figure(structure.folder_circles, 0),
    "packages not under mypy --strict": Figure(structure.packages_without_strict_types, 0),
    "writes into other objects": Figure(structure.writes_into_others, 20),
    "writes into the runtime": Figure(structure.writes_into_runtime, 0),
    "attributes of the runtime": Figure(structure.runtime_attributes, 20),
    "parameters that take all settings": Figure(structure.settings_parameters, 20),
    "files that take all settings": Figure(structure.settings_files, 8),
    "modules without a test, %": Figure(structure.untested_modules, 10),
}


def main() -> int:
    """Print the table, or the items that the named figures count."""
    from tests.repo.test_ratchets import BOUNDS

    repository = load()
    wanted = sys.argv[1:]
    unknown = [name for name in wanted if name not in FIGURES]
    if unknown:
        print(f"no such figure: {', '.join(unknown)}; there are:", *FIGURES, sep="\n  ")
        return 2
    for name in wanted:
        print(*FIGURES[name].measure(repository).items, sep="\n")
    if not wanted:
        print(f"{'figure':40}{'today':>9}{'bound':>9}{'target':>9}")
        for name, figure in FIGURES.items():
            today = figure.measure(repository).value
            bound = BOUNDS.get(name, "-")
            print(f"{name:40}{today:>9g}{bound:>9}{figure.target:>9g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
