"""docs/map.md names every folder and source file, names no other path, and is current.

Format: code blocks with one path a line and a phrase after it. A path that ends in "/" is a
folder; the lines indented below it are its content:

    atroposlib/                the package
      api/                     the rollout API
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = "docs/map.md"
MAPPED = ("atroposlib", "example_trainer", "environments", "helpers", "scripts", "benchmarks")
UNNAMED = ("__init__.py", "__main__.py")  # their docstring is the line of the folder


@pytest.fixture(scope="module")
def generator(script):
    return script("map")


def named_paths(page: str) -> set[str]:
    """Every path in a code block of ``page``, folders without their slash."""
    named: set[str] = set()
    for block in re.findall(r"^```\w*\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
        above: list[tuple[int, str]] = []  # (indentation, folder with its slash)
        for line in block.splitlines():
            words = line.split()
            if not words:
                continue
            indent = len(line) - len(line.lstrip())
            while above and above[-1][0] >= indent:
                above.pop()
            path = (above[-1][1] if above else "") + words[0]
            named.add(path.rstrip("/"))
            if path.endswith("/"):
                above.append((indent, path))
    return named


def on_the_map(files: list[Path]) -> set[str]:
    """Required entries of the map: source files and the folders that contain them."""
    wanted = set()
    for file in files:
        if file.suffix == ".py" and file.parts[0] in MAPPED and file.name not in UNNAMED:
            wanted.add(str(file))
            wanted |= {str(folder) for folder in file.parents if folder != Path(".")}
    return wanted


def test_the_map_names_exactly_the_folders_and_source_files(root, files):
    named = named_paths((root / PAGE).read_text(encoding="utf-8"))
    wanted = on_the_map(files)
    assert (sorted(wanted - named), sorted(named - wanted)) == ([], [])


def test_the_map_is_current(root):
    command = [sys.executable, "scripts/map.py", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readme_links_to_the_map(root):
    assert f"({PAGE})" in (root / "README.md").read_text(encoding="utf-8")


def test_every_line_of_the_map_fits_its_width(root, generator):
    lines = (root / PAGE).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > generator.LINE_WIDTH] == []


def test_a_long_phrase_is_cut_between_words(generator):
    assert generator.shorten("one two three", 13) == "one two three"
    assert generator.shorten("one two three", 12) == "one two ..."
    assert generator.shorten("one two, three four", 14) == "one two ..."


def test_a_map_may_be_flat_or_indented():
    text = "```\na/b/c.py  one\na/  two\n  d/  three\n    e.py  four\n  f.py  five\n```\n"
    assert named_paths(text) == {"a/b/c.py", "a", "a/d", "a/d/e.py", "a/f.py"}
