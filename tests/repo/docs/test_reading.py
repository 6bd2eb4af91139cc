"""docs/reading.md: its files and functions exist, and those of an operation run with it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.repo.paths import record
from tests.repo.sources import PACKAGES

STEP = re.compile(r"^\d+\. `([\w/.]+\.py)`,((?:\s+`[\w.]+`,?)+):", re.MULTILINE)
NAME = re.compile(r"`([\w.]+)`")
QUESTIONS = 7
RECORDED = {
    "How does a posted group become durable?": "post one group",
    "How is a batch formed and delivered?": "claim a batch",
    "How does a chat answer become a row of tokens?": "managed row",
}

Steps = list[tuple[str, list[str]]]  # (file, functions)


@pytest.fixture(scope="module")
def questions(root: Path) -> dict[str, Steps]:
    page = (root / "docs/reading.md").read_text(encoding="utf-8")
    sections = [part.partition("\n") for part in page.split("\n## ")[1:]]
    return {
        title: [(file, NAME.findall(names)) for file, names in STEP.findall(text)]
        for title, _, text in sections
    }


def test_every_folder_of_the_packages_has_a_line(root):
    page = (root / "docs/reading.md").read_text(encoding="utf-8").partition("\n## ")[0]
    named = set(re.findall(r"`((?:atroposlib|example_trainer)/\w+)/`", page))
    inits = [path for top in PACKAGES for path in (root / top).glob("*/__init__.py")]
    assert named == {str(path.parent.relative_to(root)) for path in inits}


def definitions(file: Path) -> set[str]:
    """Functions, classes and methods as ``name`` and ``Class.name``."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = set()
    for node in tree.body:
        if isinstance(node, defined):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{n.name}" for n in node.body if isinstance(n, defined)}
    return names


def test_every_step_names_what_exists(root, questions):
    assert len(questions) == QUESTIONS
    for steps in questions.values():
        assert 5 <= len(steps) <= 10
        for file, names in steps:
            assert not set(names) - definitions(root / file), file


@pytest.mark.parametrize("question", RECORDED)
def test_the_functions_of_an_operation_run_with_it(questions, question):
    ran = record(RECORDED[question]).functions
    for file, names in questions[question]:
        assert not set(names) - set(ran[file].values()), file
