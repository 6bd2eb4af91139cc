"""Parsed Python files of the repository and the graph of their imports."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("atroposlib", "example_trainer")
PRODUCT = (*PACKAGES, "environments", "helpers")
SOURCE = (*PRODUCT, "benchmarks", "scripts")

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Ten times as fast as tokenize, and the same for Python 3.10, whose f-strings hold no quote
# like their delimiter.
STRING_OR_COMMENT = re.compile(
    r"""
    \"{3} (?: [^"\\] | \\. | "(?!"") )* \"{3}
    | \'{3} (?: [^'\\] | \\. | '(?!'') )* \'{3}
    | " (?: [^"\\\n] | \\. )* "
    | ' (?: [^'\\\n] | \\. )* '
    | (?P<comment> \#[^\n]* )
    """,
    re.DOTALL | re.VERBOSE,
)

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Source:
    """One Python file; ``path`` is relative to the root."""

    path: Path
    text: str = field(repr=False)

    @cached_property
    def tree(self) -> ast.Module:
        return parsed(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def docstrings(self) -> tuple[tuple[int, str], ...]:
        """Docstrings with their first line."""
        pairs: list[tuple[int, str]] = []
        pending: list[ast.AST] = [self.tree]
        while pending:
            node = pending.pop()
            if isinstance(node, DOCUMENTED) and node.body:
                text = ast.get_docstring(node)
                pairs += [(node.body[0].lineno, text)] if text else []
            # Expressions hold no docstring; a handler or a case holds statements.
            pending += [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr)]
        return tuple(sorted(pairs))

    @cached_property
    def comments(self) -> tuple[tuple[int, str], ...]:
        """Comments with their first line; lines of comment one below the other are joined."""
        return tuple(comments_of(self.text)) if "#" in self.text else ()

    @property
    def is_init(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def name(self) -> str:
        parts = self.path.parent.parts if self.is_init else self.path.with_suffix("").parts
        return ".".join(("atroposlib", *parts) if parts[0] == "environments" else parts)

    @property
    def folder(self) -> str:
        return str(self.path.parent)


@cache
def parsed(text: str, path: Path) -> ast.Module:
    """Syntax tree of a file of Python 3.10, made once for all tests of a process."""
    return ast.parse(text, filename=str(path), feature_version=(3, 10))


def comments_of(text: str) -> list[tuple[int, str]]:
    """First line and text of each comment, in order."""
    comments: list[tuple[int, str]] = []
    last = (-1, -1)  # line and column of a comment that stands alone on its line
    line, counted_to = 1, 0
    for token in STRING_OR_COMMENT.finditer(text):
        if token["comment"] is None:
            continue
        line, counted_to = line + text.count("\n", counted_to, token.start()), token.start()
        line_start = text.rfind("\n", 0, token.start()) + 1
        column = token.start() - line_start
        words = token["comment"].lstrip("#: ").strip()
        alone = not text[line_start : token.start()].strip()
        if alone and last == (line - 1, column):
            comments[-1] = (comments[-1][0], f"{comments[-1][1]} {words}")
        else:
            comments.append((line, words))
        last = (line, column) if alone else (-1, -1)
    return comments


@dataclass(frozen=True)
class Repository:
    """Files measured by the ratchets: Python files, README, pyproject.toml, names of pages."""

    sources: tuple[Source, ...] = field(repr=False)
    readme: str = field(default="", repr=False)
    pyproject: str = field(default="", repr=False)
    pages: tuple[Path, ...] = field(default=(), repr=False)

    def under(self, *tops: str) -> list[Source]:
        return [source for source in self.sources if source.path.parts[0] in tops]

    @cached_property
    def graph(self) -> Graph:
        """Module to imported modules, for the source folders."""
        return import_graph(self.under(*SOURCE))


def load(root: Path = ROOT, files: Iterable[Path] | None = None) -> Repository:
    """Repository below ``root``; ``files`` defaults to those git tracks or would track."""
    if files is None:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        files = sorted({Path(line) for line in done.stdout.splitlines()})
    files = [path for path in files if (root / path).is_file()]
    wanted = [path for path in files if path.suffix == ".py"]
    return Repository(
        tuple(Source(path, (root / path).read_text(encoding="utf-8")) for path in wanted),
        (root / "README.md").read_text(encoding="utf-8"),
        (root / "pyproject.toml").read_text(encoding="utf-8"),
        tuple(path for path in files if path.suffix == ".md"),
    )


def import_graph(sources: Iterable[Source]) -> Graph:
    """Imports at any depth: in functions and under TYPE_CHECKING too.

    A name imported from a package counts as an import of the module from which the package's
    ``__init__`` takes it: a package that only re-exports is not a link of a circle.
    """
    modules = {source.name: source for source in sources}
    exports = {
        source.name: {bound: origin for bound, origin in imported_names(source)}
        for source in modules.values()
        if source.is_init
    }
    graph: Graph = {name: set() for name in modules}
    for source in modules.values():
        for _, origin in imported_names(source):
            target = resolve(origin, modules, exports)
            if target is not None and target != source.name:
                graph[source.name].add(target)
    return graph


def imported_names(source: Source) -> Iterator[tuple[str, str]]:
    """Pairs of bound name and absolute dotted origin."""
    package = source.name if source.is_init else source.name.rpartition(".")[0]
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                above = parts[: len(parts) - (node.level - 1)]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield alias.asname or alias.name, f"{base}.{alias.name}"


def resolve(
    origin: str, modules: Mapping[str, Source], exports: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Module that defines ``origin``, through re-exports of packages; None if not ours."""
    seen: set[str] = set()
    while origin not in modules and origin not in seen:
        seen.add(origin)
        base, _, name = origin.rpartition(".")
        if base not in modules:
            return None
        origin = exports.get(base, {}).get(name, base)
    return origin if origin in modules else None


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node, sorted (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            cut = stack.index(node)
            component = sorted(stack[cut:])
            del stack[cut:]
            if len(component) > 1:
                components.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(components)


def folder_graph(repository: Repository) -> Graph:
    """Folder to folders its modules import from.

    The imports of an ``__init__`` from below its own folder are left out: they make a
    package's face or registry and order nothing. A ``__main__`` is left out as well: no module
    imports it.
    """
    modules = {source.name: source for source in repository.under(*SOURCE)}
    graph: Graph = {}
    for name, targets in repository.graph.items():
        source = modules[name]
        for target in targets:
            is_package = source.is_init and target.startswith(source.name + ".")
            is_face = is_package or name.endswith(".__main__")
            if source.folder != modules[target].folder and not is_face:
                graph.setdefault(source.folder, set()).add(modules[target].folder)
    return graph
