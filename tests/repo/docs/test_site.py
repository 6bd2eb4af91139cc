"""mkdocs.yml has every page of docs/, and the pages of errors and commands are complete.

`make docs` builds the site with every broken link as an error; it is not part of the tests.
"""

from __future__ import annotations

import ast
import importlib
import re

import pytest
import yaml

CELL_WIDTH = 160
# Tables of settings, of checks and of recorded commands.
WRITTEN_BY_COMMANDS = ("CONFIG.md", "docs/gpu.md", "docs/log.md")
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags for Python objects and variables stand for any value."""


Loader.add_multi_constructor("", lambda loader, suffix, node: None)


@pytest.fixture(scope="module")
def settings(root):
    text = (root / "mkdocs.yml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=Loader)


@pytest.fixture(scope="module")
def outside(root) -> dict[str, str]:
    """OUTSIDE of the hooks, which import mkdocs and are therefore only parsed here."""
    tree = ast.parse((root / "scripts/site_hooks.py").read_text(encoding="utf-8"))
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OUTSIDE"
    ]
    return ast.literal_eval(value)


def pages_in(outline) -> list[str]:
    if isinstance(outline, str):
        return [outline]
    parts = outline if isinstance(outline, list) else outline.values()
    return [page for part in parts for page in pages_in(part)]


def test_the_outline_names_every_page_once(settings, outside, files):
    own = [str(path)[5:] for path in files if path.parts[0] == "docs" and path.suffix == ".md"]
    assert sorted(pages_in(settings["nav"])) == sorted([*own, *outside.values()])


def test_every_page_from_outside_exists(root, outside):
    assert [path for path in outside if not (root / path).is_file()] == []


def test_pages_load_no_font_of_another_machine(settings):
    assert settings["theme"]["font"] is False
    listed = [*settings.get("extra_css", []), *settings.get("extra_javascript", [])]
    assert [one for one in listed if "//" in one] == []


def test_every_error_has_a_row(root):
    tree = ast.parse((root / "atroposlib/errors.py").read_text(encoding="utf-8"))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    page = (root / "docs/troubleshooting.md").read_text(encoding="utf-8")
    page = page.partition("\n## Errors\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \*{0,2}`(\w+)`", page, re.MULTILINE)
    assert sorted(rows) == sorted(set(classes) - {"SourceLine"})


@pytest.mark.parametrize(
    "path", ["docs/reference.md", "docs/index.md", "docs/tutorials/first-environment.md"]
)
def test_every_command_of_a_page_exists(root, path):
    from atroposlib.cli.atropos import COMMANDS

    known = {word for words in COMMANDS for word in (words, words.split()[0])}
    page = (root / path).read_text(encoding="utf-8")
    used = re.findall(r"^atropos ([a-z]+(?: [a-z]+\b(?![./]))?)", page, re.MULTILINE)
    strange = [words for words in used if not {words, words.split()[0]} & known]
    assert strange == []


def test_every_documented_python_name_exists(root):
    page = (root / "docs/reference.md").read_text(encoding="utf-8")
    for dotted in re.findall(r"^::: (\S+)$", page, re.MULTILINE):
        module, _, name = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), name), dotted


def test_no_cell_of_a_table_is_wide(root, files):
    wide = []
    for path in files:
        if path.suffix != ".md" or str(path).startswith(
            ("CHANGELOG.md", *WRITTEN_BY_COMMANDS)
        ):
            continue
        page = FENCE.sub("", (root / path).read_text(encoding="utf-8"))
        for line in re.findall(r"^\|.*$", page, re.MULTILINE):
            cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
            wide += [f"{path}: {cell}" for cell in cells if len(cell) > CELL_WIDTH]
    assert wide == []


def test_prose_has_one_line_width(root, files):
    long = []
    for path in files:
        name = str(path)
        if path.suffix != ".md" or name.startswith(
            ("docs/log.md", "CHANGELOG.md", "CONFIG.md")
        ):
            continue
        page = (root / path).read_text(encoding="utf-8")
        text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), page)
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > 120 and not line.lstrip().startswith(("|", "<", "!", "#")):
                long.append(f"{name}:{number}: {len(line)}")
    assert long == []
