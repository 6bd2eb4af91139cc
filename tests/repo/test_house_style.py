"""House style: sizes of files and functions, and no paths of the author's machine."""

from __future__ import annotations

import ast
import re

from tests.repo.sources import parsed

MAX_FILE_LINES = 600  # most stay below 300: a figure of test_ratchets.py
MAX_FUNCTION_LINES = 80
# Exceptions with their reason; a short list is the point of the test.
LONGER_ON_PURPOSE: dict[str, str] = {}

# Spelt in pieces so that this file does not find itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.}])/(?:" + "|".join(("work", "root", "tmp", "home", "opt")) + ")/"
)
TEXT = {".cfg", ".ini", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ""}


def test_no_source_file_is_too_long_to_read(root, files):
    long = {}
    for path in files:
        if path.suffix == ".py" and str(path) not in LONGER_ON_PURPOSE:
            lines = len((root / path).read_text(encoding="utf-8").splitlines())
            if lines > MAX_FILE_LINES:
                long[str(path)] = lines
    assert long == {}


def test_no_function_is_too_long_to_read(root, files):
    long = {}
    for path in files:
        if path.suffix != ".py":
            continue
        for node in ast.walk(parsed((root / path).read_text(encoding="utf-8"), path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                name = f"{path}:{node.name}"
                if lines > MAX_FUNCTION_LINES and name not in LONGER_ON_PURPOSE:
                    long[name] = lines
    assert long == {}


def test_broad_excepts_appear_only_in_boundary_modules(modules):
    found = []
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler) and is_broad(node):
                found.append(f"{module.path}:{node.lineno}")
    assert [place for place in found if not place.startswith("atroposlib/errors.py")] == []


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Catches everything and does not raise it again."""
    if handler.type is not None and ast.unparse(handler.type) not in (
        "Exception",
        "BaseException",
    ):
        return False
    last = handler.body[-1]
    return not (isinstance(last, ast.Raise) and last.exc is None)


def test_no_file_contains_a_path_of_the_author_s_machine(root, files):
    found = []
    for path in files:
        if path.suffix in TEXT:
            lines = (root / path).read_text(encoding="utf-8").splitlines()
            found += [
                f"{path}:{number}: {line.strip()[:80]}"
                for number, line in enumerate(lines, 1)
                if MACHINE_PATH.search(line)
            ]
    assert found == []
