"""The README's map names what is there, and only that.

Format: code blocks with one path a line and a phrase after it. A path that ends in "/" is a
folder; lines indented below it are inside of it:

    atroposlib/api/            the rollout API
      batching.py              how a batch is chosen
"""

from __future__ import annotations

import re
from pathlib import Path

MAPPED_FILE_BY_FILE = ("atroposlib", "example_trainer")
UNNAMED = ("__init__.py", "__main__.py")  # the folder's own line speaks for them


def named_paths(readme: str) -> set[str]:
    """Every path a code block of ``readme`` names, folders without their slash."""
    named: set[str] = set()
    for block in re.findall(r"^```\w*\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE):
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
    """What the map has to name: visible top folders, package folders and source files."""
    wanted = {f.parts[0] for f in files if len(f.parts) > 1 and not f.parts[0].startswith(".")}
    for file in files:
        if file.suffix == ".py" and file.parts[0] in MAPPED_FILE_BY_FILE:
            wanted.add(str(file.parent))
            if file.name not in UNNAMED:
                wanted.add(str(file))
    return wanted


def test_every_folder_and_source_file_is_on_the_map(root, files):
    named = named_paths((root / "README.md").read_text(encoding="utf-8"))
    assert sorted(on_the_map(files) - named) == []


def test_the_map_names_nothing_that_is_not_there(root, files):
    top = {file.parts[0] for file in files if len(file.parts) > 1}
    named = named_paths((root / "README.md").read_text(encoding="utf-8"))
    paths = {path for path in named if path.split("/")[0] in top}
    assert sorted(path for path in paths if not (root / path).exists()) == []


def test_a_map_may_be_flat_or_indented():
    text = "```\na/b/c.py  one\na/  two\n  d/  three\n    e.py  four\n  f.py  five\n```\n"
    assert named_paths(text) == {"a/b/c.py", "a", "a/d", "a/d/e.py", "a/f.py"}
