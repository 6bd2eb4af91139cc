"""Links of every Markdown page, and paths and modules that the guides name, exist.

A guide names a file by its path from the root (`atroposlib/api/server.py`), by the end of it
(`api/server.py`, `server.py`) or as a module (`atroposlib.api.server`, `-m example_trainer.grpo`).
A dotted name may go on with classes, functions and attributes: the first is looked up as well.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

GUIDES = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "SLURM.md")
GUIDE_FOLDERS = ("docs", "environments", "benchmarks")
# Pages about the past keep the paths of their time.
HISTORY = ("CHANGELOG.md", "docs/log.md", "docs/decisions")
TOPS = (
    "atroposlib",
    "example_trainer",
    "environments",
    "benchmarks",
    "scripts",
    "tests",
    "docs",
)
# Files that a guide invents for its reader, and a file of the original's guide.
INVENTED = {
    "atroposlib/tests/test_advantages.py",
    "sums.py",
    "longer_sums.py",
    "larger.py",
    "test_larger.py",
    "guess.py",
    "product.py",
    "boxed.py",
    "my_env.py",
    "wordle.py",
    "wordle/wordle.py",
    "example_trainer/losses/mine.py",
    "mine.py",
    "path/FILE.py",
    "softclip/softclip.py",
    "atroposlib/envs/reward_fns/shouting_reward.py",
}

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?<![\w./:<>{}$~\-])[\w\-.*]+(?:/[\w\-.*]+)*/?(?![\w<{/])")
# Settings of a run's file, as environments.0.env.group_size, name no module.
DOTTED = re.compile(
    r"(?<![\w./\-])(?!environments\.(?:\d+|larger)\.)(?:atroposlib|example_trainer|environments)(?:\.\w+)+(?![\w/])"
)
ADVICE = (
    "a guide names what is not there: give it the new path, in the commit that moves the file"
)


def is_guide(path: Path) -> bool:
    if path.suffix != ".md" or str(path).startswith(HISTORY):
        return False
    return str(path) in GUIDES or path.parts[0] in GUIDE_FOLDERS


def code_of(page: str) -> list[tuple[int, str]]:
    """Code spans and lines of code blocks of a page, with their line numbers."""
    found = []
    inside = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside:
            found.append((number, line))
        else:
            found += [(number, span) for span in CODE_SPAN.findall(line)]
    return found


def paths_in(code: str, folders: frozenset[str] = frozenset(TOPS)) -> list[str]:
    """Words of ``code`` that name a path of the repository.

    These are paths below a top folder, Python files, and ``folder/.../`` with a slash at the end
    whose first part is one of ``folders``.
    """
    words = [word.removeprefix("./") for word in PATH.findall(code)]
    return [
        word
        for word in words
        if (word.split("/")[0] in TOPS and "/" in word)
        or re.search(r"\w\.py$", word)
        or (word.endswith("/") and word.split("/")[0] in folders)
        if word not in INVENTED
    ]


def exists(word: str, known: set[str]) -> bool:
    """Whether a file or folder of ``known`` has the path ``word``, or ends in it."""
    pattern = re.escape(word.rstrip("/")).replace(r"\*", "[^/]*")
    start = "" if word.split("/")[0] in TOPS else "(?:.*/)?"
    whole = re.compile(start + pattern)
    return any(whole.fullmatch(path) for path in known)


def resolves(dotted: str, modules: dict[str, set[str]]) -> bool:
    """Whether the longest module in ``dotted`` binds the name that follows it, if one does."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        bound = modules.get(".".join(parts[:end]))
        if bound is not None:
            return end == len(parts) or parts[end] in bound
    return False


def bound_names(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.fixture(scope="module")
def known(files) -> set[str]:
    """Every file and folder of the repository, relative to the root."""
    return {str(path) for file in files for path in (file, *file.parents)}


def test_every_relative_link_leads_to_a_file(root, files):
    broken = []
    for file in files:
        if file.suffix == ".md":
            page = FENCE.sub("", (root / file).read_text(encoding="utf-8"))
            for text, target in LINK.findall(page):
                path = target.partition("#")[0]
                if path and "://" not in path and not path.startswith("mailto:"):
                    if not (root / file.parent / path).exists() or misnamed(text, path):
                        broken.append(f"{file}: [{text}]({target})")
    assert broken == [], ADVICE


def anchors_of(page: str) -> set[str]:
    """Anchors of the headings of a page, as the site and GitHub form them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", LINK.sub(r"\1", title)) for title in titles)
    return {title.strip().lower().replace(" ", "-") for title in plain}


def test_every_anchor_of_a_link_is_a_heading(root, files):
    broken = []
    for file in files:
        if file.suffix == ".md":
            page = FENCE.sub("", (root / file).read_text(encoding="utf-8"))
            for text, target in LINK.findall(page):
                path, _, anchor = target.partition("#")
                if anchor and "://" not in target and path[-3:] in ("", ".md"):
                    there = root / file.parent / path if path else root / file
                    if anchor not in anchors_of(there.read_text(encoding="utf-8")):
                        broken.append(f"{file}: [{text}]({target})")
    assert broken == [], ADVICE


def misnamed(text: str, path: str) -> bool:
    """Whether the text of a link is a file name, and not that of its target."""
    name = text.strip("`").removesuffix("/")
    is_name = re.fullmatch(r"[\w./-]+\.(?:py|md|yaml|json)", name) is not None
    return is_name and name.split("/")[-1] != path.split("/")[-1]


def test_every_path_in_a_guide_exists(root, files, known):
    folders = frozenset(part for file in files for part in file.parts[:-1])
    broken = [
        f"{file}:{number}: {word}"
        for file in filter(is_guide, files)
        for number, code in code_of((root / file).read_text(encoding="utf-8"))
        for word in paths_in(code, folders)
        if not exists(word, known)
    ]
    assert broken == [], ADVICE


def test_every_module_in_a_guide_exists(root, files, modules):
    bound = {name: bound_names(module.tree) for name, module in modules.items()}
    for name in list(bound):
        parent, _, last = name.rpartition(".")
        bound.setdefault(parent, set()).add(last)
    broken = [
        f"{file}:{number}: {word}"
        for file in filter(is_guide, files)
        for number, code in code_of((root / file).read_text(encoding="utf-8"))
        for word in DOTTED.findall(code)
        if not resolves(word, bound)
    ]
    assert broken == [], ADVICE


@pytest.mark.parametrize(
    "code, paths",
    [
        ("api/server.py", ["api/server.py"]),
        ("python docs/examples/a.py --data-dir runs/1", ["docs/examples/a.py"]),
        ("tests/repo/test_public_*.py", ["tests/repo/test_public_*.py"]),
        ("text/event-stream and environments", []),
        ("api/run/ and runs/quickstart/", ["api/run/"]),
        ("example_trainer/losses/<name>.py", []),
        ("https://example.org/a.py ~/b.py /c.py", []),
    ],
)
def test_words_of_code_that_name_a_file_are_found(code, paths):
    assert paths_in(code, frozenset({"api"})) == paths


def test_a_path_may_omit_leading_folders_but_not_the_file_name():
    known = {"a/api/server.py", "a/api", "tests/repo/test_x.py"}
    assert exists("api/server.py", known) and exists("server.py", known)
    assert exists("tests/repo/test_*.py", known) and not exists("tests/test_*.py", known)
    assert not exists("pi/server.py", known) and not exists("api/serve.py", known)


def test_a_dotted_name_may_end_in_a_name_bound_by_its_module():
    modules = {
        "atroposlib": {"api"},
        "atroposlib.api": {"server"},
        "atroposlib.api.server": {"app"},
    }
    assert resolves("atroposlib.api.server.app.state", modules)
    assert not resolves("atroposlib.api.server.create", modules)
    assert not resolves("atroposlib.client.retry", modules)
