"""The sources run on Python 3.10, also where another Python runs this test."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.repo.sources import parsed

# Names of the standard library that came with 3.11 or later and are easily used unawares.
TOO_NEW = {
    "asyncio": {"Barrier", "Runner", "TaskGroup", "timeout", "timeout_at"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "verify"},
    "itertools": {"batched"},
    "typing": {"LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple"}
    | {
        "Unpack",
        "assert_never",
        "assert_type",
        "dataclass_transform",
        "override",
        "reveal_type",
    },
    "warnings": {"deprecated"},
}
TOO_NEW_MODULES = {"tomllib"}
GUARDED = {  # they check the version first
    Path("tests/docs/test_code_blocks.py"),
    Path("tests/repo/package/test_packaging.py"),
}


def too_new(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names} & TOO_NEW.get(
                node.module or "", set()
            )
            found += [f"line {node.lineno}: {node.module}.{name}" for name in sorted(names)]
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names} & TOO_NEW_MODULES
            found += [f"line {node.lineno}: {name}" for name in sorted(names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in TOO_NEW.get(node.value.id, set()):
                found.append(f"line {node.lineno}: {node.value.id}.{node.attr}")
    return found


def test_every_source_file_parses_as_python_310(root, files):
    for path in files:
        if path.suffix == ".py":
            parsed((root / path).read_text(encoding="utf-8"), path)


def test_no_api_newer_than_python_310_is_used(root, files):
    found = {}
    for path in files:
        if path.suffix == ".py" and path not in GUARDED:
            names = too_new(parsed((root / path).read_text(encoding="utf-8"), path))
            if names:
                found[str(path)] = names
    assert found == {}


def test_use_of_a_newer_standard_library_name_is_detected():
    assert too_new(ast.parse("import asyncio\nasyncio.timeout(3)")) == [
        "line 2: asyncio.timeout"
    ]
    assert too_new(ast.parse("from enum import Enum, StrEnum")) == ["line 1: enum.StrEnum"]
