"""Figures of the repository's structure, each with the value it should fall to.

    python -m tests.repo.ratchets                  every figure: today, bound, target
    python -m tests.repo.ratchets "folder circles" what one figure counts

The bounds are in test_ratchets.py. Nothing here depends on where a module lives: classes are
found by name, folders and modules by pattern.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the root is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.repo.sources import (
    PACKAGES,
    PRODUCT,
    SOURCE,
    Repository,
    Source,
    circles,
    folder_graph,
    load,
)

MAX_FILES_IN_FOLDER = 15
MAX_USES_OF_BASE_NAME = 2
COMMON_BASE_NAMES = ("__init__", "__main__", "cli", "config")
DOCUMENTED = ("atroposlib", "example_trainer", "environments", "scripts", "benchmarks")
# Words that give a process a voice or leave the subject open, from the review of the prose
# (docs of peer projects: 0.0 to 0.9 per 1,000 words). The noun of the field replaces them.
LOOSE_WORDS = (
    "say says said tell tells told hear hears heard unheard speak speaks "
    "nobody somebody someone everybody anybody whoever whatever whichever "
    "goodbye patience beside worth shall"
).split()
LOOSE_PHRASES = (
    *("for ever", "of ours", "another one", "one another", "as it stands"),
    *("of its own", "of their own", "so long as it answers"),
)
LOOSE = re.compile(
    r"(?<![\w.\-/])(?:"
    + "|".join([*LOOSE_WORDS, *(phrase.replace(" ", r"\s+") for phrase in LOOSE_PHRASES)])
    + r")(?![\w(=])",
    re.IGNORECASE,
)
CODE = re.compile(r"``.*?``|`[^`\n]*`", re.DOTALL)
WORD = re.compile(r"[A-Za-z][\w'-]*")
RUNTIME = "EnvRuntime"
RUNTIME_VARIABLES = ("env", "runtime")
SETTINGS = "TrainingConfig"

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Measured:
    """A figure and its counted items, where they can be listed."""

    value: float
    items: tuple[str, ...] = ()


def counted(items: list[str]) -> Measured:
    return Measured(len(items), tuple(items))


# --- folders and names


LIBRARY = ("environments", "tests/environments")


def crowded_folders(sources: list[Source]) -> Measured:
    """Folders that directly hold more than MAX_FILES_IN_FOLDER Python files.

    ``__init__`` and ``__main__`` stand for the folder itself and do not count. The library of
    environments is a list of files, each found by its name.
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


def module_count(repository: Repository) -> Measured:
    """Python files of the two packages, ``__init__`` included."""
    return Measured(len(repository.under(*PACKAGES)))


def source_lines(repository: Repository) -> Measured:
    """Lines of Python in the product, blank ones included."""
    return Measured(sum(len(s.text.splitlines()) for s in repository.under(*PRODUCT)))


def readme_lines(repository: Repository) -> Measured:
    """Lines of README.md."""
    return Measured(len(repository.readme.splitlines()))


def file_circles(repository: Repository) -> Measured:
    """Groups of modules that import each other, function-level and type imports included."""
    return counted([" ".join(circle) for circle in circles(repository.graph)])


def folder_circles(repository: Repository) -> Measured:
    """Groups of folders whose modules import each other."""
    return counted([" ".join(circle) for circle in circles(folder_graph(repository))])


def repeated_class_names(repository: Repository) -> Measured:
    """Names of top-level classes defined in more than one module of the two packages."""
    homes: dict[str, list[str]] = defaultdict(list)
    for source in repository.under(*PACKAGES):
        for name in {n.name for n in source.tree.body if isinstance(n, ast.ClassDef)}:
            homes[name].append(source.name)
    return counted([f"{n}: {' '.join(m)}" for n, m in sorted(homes.items()) if len(m) > 1])


def repeated_base_names(repository: Repository) -> Measured:
    """File names used more than MAX_USES_OF_BASE_NAME times in the source."""
    uses: dict[str, list[str]] = defaultdict(list)
    for source in repository.under(*SOURCE):
        uses[source.path.stem].append(source.folder)
    return counted(
        [
            f"{name}: {' '.join(folders)}"
            for name, folders in sorted(uses.items())
            if len(folders) > MAX_USES_OF_BASE_NAME and name not in COMMON_BASE_NAMES
        ]
    )


# --- prose


def prose_of(source: Source) -> Iterator[tuple[int, str]]:
    """Docstrings and comments with their first line; text in backticks is left out."""
    for node in source.nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, *Function)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, CODE.sub(" ", text)
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], CODE.sub(" ", token.string)


def loose_words(repository: Repository) -> Measured:
    """Words of LOOSE per 1,000 words of docstrings and comments."""
    words = 0
    items: list[str] = []
    for source in repository.under(*DOCUMENTED):
        for line, text in prose_of(source):
            words += len(WORD.findall(text))
            items += [f"{source.path}:{line}: {found}" for found in LOOSE.findall(text)]
    return Measured(round(1000 * len(items) / max(words, 1), 1), tuple(items))


# --- types, runtime and settings


def packages_without_strict_types(repository: Repository) -> Measured:
    """Packages that are not in mypy's ``files`` under ``strict``."""
    section = repository.pyproject.partition("[tool.mypy]")[2].partition("\n[")[0]
    files = re.search(r"^files\s*=\s*\[(.*?)\]", section, re.DOTALL | re.MULTILINE)
    listed = re.findall(r"[\"']([^\"']+)[\"']", files[1]) if files else []
    strict = re.search(r"^strict\s*=\s*true", section, re.MULTILINE) is not None
    return counted([p for p in PACKAGES if not strict or p not in listed])


def targets_of(node: ast.AST) -> Iterator[ast.expr]:
    """Single targets of an assignment, tuples taken apart; annotated and augmented too."""
    pending: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        pending = list(node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        pending = [node.target]
    while pending:
        target = pending.pop(0)
        if isinstance(target, (ast.Tuple, ast.List)):
            pending = [*target.elts, *pending]
        else:
            yield target.value if isinstance(target, ast.Starred) else target


def attribute_chain(target: ast.expr) -> list[str]:
    """``["env", "server", "x"]`` of ``env.server.x``; empty for anything else."""
    names: list[str] = []
    while isinstance(target, ast.Attribute):
        names.insert(0, target.attr)
        target = target.value
    return [target.id, *names] if isinstance(target, ast.Name) and names else []


def classes_called(name: str, sources: list[Source]) -> list[tuple[Source, ast.ClassDef]]:
    return [
        (source, node)
        for source in sources
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]


def writes_into_runtime(repository: Repository) -> Measured:
    """Assignments to attributes of a runtime, or of its parts, outside its own module.

    A runtime is a variable ``env`` or ``runtime`` (a parameter or a local name of one), or an
    attribute of ``self`` with that name, with or without an underscore.
    """
    sources = repository.under("atroposlib")
    own = {source.name for source, _ in classes_called(RUNTIME, sources)}
    items = []
    for source in sources:
        for node in source.nodes if source.name not in own else ():
            for target in targets_of(node):
                chain = attribute_chain(target)
                if chain[:1] == ["self"]:
                    chain = chain[1:]
                # Two names at least: self.env = env hands the runtime over, no more.
                if len(chain) > 1 and chain[0].lstrip("_") in RUNTIME_VARIABLES:
                    items.append(f"{source.path}:{target.lineno}: {ast.unparse(target)}")
    return counted(items)


def runtime_attributes(repository: Repository) -> Measured:
    """Attributes that the runtime and its bases in atroposlib set on ``self``."""
    sources = repository.under("atroposlib")
    names: set[str] = set()
    pending, seen = [RUNTIME], set()
    while pending:
        name = pending.pop()
        seen.add(name)
        for _, found in classes_called(name, sources):
            bases = [
                b.attr if isinstance(b, ast.Attribute) else ast.unparse(b) for b in found.bases
            ]
            pending += [base for base in bases if base not in seen]
            for node in ast.walk(found):
                chains = [attribute_chain(target) for target in targets_of(node)]
                names |= {c[1] for c in chains if len(c) == 2 and c[0] == "self"}
    return counted(sorted(names))


def settings_parameters(repository: Repository) -> Measured:
    """Parameters annotated with the settings of the whole trainer, in example_trainer."""
    word = re.compile(rf"\b{SETTINGS}\b")
    items = []
    for source in repository.under("example_trainer"):
        for node in source.nodes:
            if isinstance(node, ast.arg) and node.annotation is not None:
                if word.search(ast.unparse(node.annotation)):
                    items.append(f"{source.path}:{node.lineno}")
    return counted(sorted(items))


def settings_files(repository: Repository) -> Measured:
    """Files of example_trainer with such a parameter."""
    places = settings_parameters(repository).items
    return counted(sorted({place.rpartition(":")[0] for place in places}))


# --- tests


def is_stub(function: ast.AST) -> bool:
    """Whether the body is a docstring, ``pass``, ``...`` or ``raise NotImplementedError``."""
    assert isinstance(function, Function)
    return all(
        isinstance(step, ast.Pass)
        or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
        or (isinstance(step, ast.Raise) and "NotImplementedError" in ast.unparse(step))
        for step in function.body
    )


def untested_modules(repository: Repository) -> Measured:
    """Percentage of modules with behaviour that no test file is named after.

    Behaviour: a function that is more than a stub. A test of module ``m`` in folder ``f`` is
    test_m.py, test_f_m.py or test_m_<something>.py; ``__main__`` goes by its folder's name.
    """
    stems = {s.path.stem for s in repository.under("tests")}
    live, items = 0, []
    for source in repository.under(*PACKAGES):
        functions = [node for node in source.nodes if isinstance(node, Function)]
        if source.is_init or all(is_stub(function) for function in functions):
            continue
        live += 1
        folder, name = source.path.parent.name, source.path.stem
        if name == "__main__":
            name = folder
        exact = {f"test_{name}", f"test_{folder}_{name}"}
        if not exact & stems and not any(s.startswith(f"test_{name}_") for s in stems):
            items.append(str(source.path))
    return Measured(round(100 * len(items) / max(live, 1), 1), tuple(items))


@dataclass(frozen=True)
class Figure:
    measure: Callable[[Repository], Measured]
    target: float


FIGURES = {
    "crowded source folders": Figure(crowded_source_folders, 0),
    "crowded test folders": Figure(crowded_test_folders, 0),
    "modules": Figure(module_count, 385),
    "file circles": Figure(file_circles, 0),
    "folder circles": Figure(folder_circles, 0),
    "class names with two meanings": Figure(repeated_class_names, 5),
    "base names used too often": Figure(repeated_base_names, 0),
    "loose words per 1,000": Figure(loose_words, 1.0),
    "README lines": Figure(readme_lines, 150),
    "packages not under mypy --strict": Figure(packages_without_strict_types, 0),
    "writes into the runtime": Figure(writes_into_runtime, 0),
    "attributes of the runtime": Figure(runtime_attributes, 20),
    "parameters that take all settings": Figure(settings_parameters, 20),
    "files that take all settings": Figure(settings_files, 8),
    "modules without a test, %": Figure(untested_modules, 10),
    "source lines": Figure(source_lines, 50200),
}


def main() -> None:
    """Print the table, or the items counted by the named figures."""
    from tests.repo.test_ratchets import BOUNDS

    repository = load()
    for name in sys.argv[1:]:
        print(*FIGURES[name].measure(repository).items, sep="\n")
    if len(sys.argv) == 1:
        print(f"{'figure':36}{'today':>9}{'bound':>9}{'target':>9}")
        for name, figure in FIGURES.items():
            today = figure.measure(repository).value
            bound = BOUNDS.get(name, "-")
            print(f"{name:36}{today:>9g}{bound:>9}{figure.target:>9g}")


if __name__ == "__main__":
    main()
