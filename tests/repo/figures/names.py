"""Names: of classes, modules, functions and variables."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.repo.figures.measured import Function, Measured, counted, share
from tests.repo.sources import PACKAGES, SOURCE, Repository

MAX_USES_OF_BASE_NAME = 2
COMMON_BASE_NAMES = ("__init__", "__main__", "cli", "config")
# Participles that do not end in -ed, and two prepositions used the same way. Words that are an
# imperative as well (read, set, put, cut, split, spread) are verbs.
IRREGULAR = set(
    "made given shown told said kept known left sent held begun seen gone taken chosen written "
    "built lost met drawn spent heard bound rebuilt hidden among beside".split()
)
NO_PARTICIPLES = {"embed", "exceed", "indeed", "need", "proceed", "speed", "succeed"}
VAGUE_VARIABLES = {"one", "other", "others", "found", "given", "told", "said", "asked"}


@dataclass(frozen=True)
class Registry:
    """Function names that each module of a kind has, by intent; ``reason`` says whose."""

    names: frozenset[str]
    modules: re.Pattern[str]
    reason: str

    @staticmethod
    def of(names: str, modules: str, reason: str) -> Registry:
        return Registry(frozenset(names.split()), re.compile(modules), reason)

    def has(self, name: str, module: str) -> bool:
        return name in self.names and self.modules.fullmatch(module) is not None


REGISTRIES = (
    Registry.of("main", r".*", "the entry of a command"),
    Registry.of(
        "build_parser parse_args",
        r"atroposlib\.(cli|client|generation\.proxy|inference)\..*"
        r"|example_trainer\.(settings\.args|supervised\.settings|quickstart\.__main__)",
        "the command line of a command",
    ),
    Registry.of(
        "serve",
        r"atroposlib\.(cli|generation\.proxy|inference)\..*",
        "what a command that starts a server does after its command line is read",
    ),
    Registry.of(
        "create_app",
        r"atroposlib\.(api\.server|generation\.proxy\.main|inference\.http\.app)",
        "the application of a server, whose name the original promises",
    ),
    Registry.of(
        "router",
        r"atroposlib\.generation\.proxy\.routes_\w+",
        "the routes of a part of the proxy",
    ),
    Registry.of(
        "generate_body read_generations",
        r"atroposlib\.generation\.engines\.\w+",
        "request and reply of the route by which an engine generates",
    ),
    Registry.of(
        "training held_out tasks gold",
        r"atroposlib\.adapters\.\w+",
        "the data of an adapter, the same arguments of `environment` in each",
    ),
    Registry.of(
        "loss", r"example_trainer\.losses\.\w+", "the loss of a configured name, see FORMULAS"
    ),
)


def repeated(homes: dict[str, list[str]]) -> list[str]:
    """Names with more than one home, each with its homes."""
    return [f"{name}: {' '.join(h)}" for name, h in sorted(homes.items()) if len(h) > 1]


def repeated_class_names(repository: Repository) -> Measured:
    """Names of top-level classes defined in more than one module of the two packages."""
    homes: dict[str, list[str]] = defaultdict(list)
    for source in repository.under(*PACKAGES):
        for name in {n.name for n in source.tree.body if isinstance(n, ast.ClassDef)}:
            homes[name].append(source.name)
    return counted(repeated(homes))


def repeated_function_names(repository: Repository) -> Measured:
    """Percentage of public functions whose name stands in more than one module.

    Of the two packages, at the top of a module; functions of REGISTRIES are left out.
    """
    homes: dict[str, list[str]] = defaultdict(list)
    for source in repository.under(*PACKAGES):
        for name in {n.name for n in source.tree.body if isinstance(n, Function)}:
            if not name.startswith("_") and not is_registered(name, source.name):
                homes[name].append(source.name)
    sizes = [len(modules) for modules in homes.values()]
    shared = sum(size for size in sizes if size > 1)
    return Measured(round(100 * shared / max(sum(sizes), 1), 1), tuple(repeated(homes)))


def is_registered(name: str, module: str) -> bool:
    return any(registry.has(name, module) for registry in REGISTRIES)


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


def is_participle(name: str) -> bool:
    """Whether a name is a participle alone: ``made``, ``_joined``, and not ``joined_run``."""
    word = name.strip("_")
    regular = word.endswith("ed") and len(word) > 4 and word not in NO_PARTICIPLES
    return "_" not in word and (regular or word in IRREGULAR)


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator makes an attribute of the function: it is read, not called."""
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def participle_functions(repository: Repository) -> Measured:
    """Functions named by a participle alone per 1,000 functions; properties are left out."""
    functions = 0
    items: list[str] = []
    for source in repository.under(*SOURCE):
        for node in source.nodes:
            if isinstance(node, Function) and not is_property(node):
                functions += 1
                if is_participle(node.name):
                    items.append(f"{source.path}:{node.lineno}: {node.name}")
    return share(items, functions, 1000)


def vague_variables(repository: Repository) -> Measured:
    """Uses of variables of VAGUE_VARIABLES per 1,000 lines; attributes do not count."""
    lines = 0
    items: list[str] = []
    for source in repository.under(*SOURCE):
        lines += source.text.count("\n")
        items += [
            f"{source.path}:{node.lineno}: {node.id}"
            for node in names_in(source.nodes)
            if node.id in VAGUE_VARIABLES
        ]
    return share(items, lines, 1000)


def names_in(nodes: Iterable[ast.AST]) -> list[ast.Name]:
    """Uses of names, in the order of the lines."""
    names = [node for node in nodes if isinstance(node, ast.Name)]
    return sorted(names, key=lambda name: (name.lineno, name.col_offset))
