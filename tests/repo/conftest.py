"""Files of the repository and the imports of each source file."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.repo.sources import parsed

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("atroposlib", "environments", "example_trainer", "helpers")


@dataclass(frozen=True)
class Import:
    target: str  # absolute
    line: int


@dataclass(frozen=True)
class Module:
    name: str  # "atroposlib.api.server"
    path: Path  # relative to the root
    tree: ast.Module
    imports: tuple[Import, ...]
    targets: frozenset[str]  # of all imports, those that only a type checker sees as well


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """Imports a file of scripts/."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # its dataclasses look themselves up there
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def files() -> list[Path]:
    """Every file git tracks or would track, relative to the root."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the repository is not known")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = sorted({Path(line) for line in listed.stdout.splitlines()})
    return [path for path in found if (ROOT / path).is_file()]


@pytest.fixture(scope="session")
def modules(files: list[Path]) -> dict[str, Module]:
    """Every module of the product by its dotted name."""
    paths = [p for p in files if p.suffix == ".py" and p.parts[0] in PRODUCT]
    names = {module_name(path): path for path in paths}
    loaded = {}
    for name, path in names.items():
        tree = parsed((ROOT / path).read_text(encoding="utf-8"), path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imports = tuple(imports_of(tree.body, package, set(names)))
        targets = frozenset(targets_of(tree, package, set(names)))
        loaded[name] = Module(name, path, tree, imports, targets)
    return loaded


def module_name(path: Path) -> str:
    """Dotted name; a file of environments/ is imported as ``atroposlib.environments.<file>``."""
    parts = path.with_suffix("").parts
    parts = ("atroposlib", *parts) if parts[0] == "environments" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(body: list[ast.stmt], package: str, known: set[str]) -> Iterator[Import]:
    """Imports below ``body``; those that only a type checker sees are left out."""
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            for alias in node.names:
                target = f"{base}.{alias.name}"
                yield Import(target if target in known else base, node.lineno)
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            yield from imports_of(node.orelse, package, known)
        else:
            inner = [child for child in ast.iter_child_nodes(node)]
            for handler in [child for child in inner if isinstance(child, ast.ExceptHandler)]:
                inner += handler.body
            statements = [child for child in inner if isinstance(child, ast.stmt)]
            yield from imports_of(statements, package, known)


def targets_of(tree: ast.Module, package: str, known: set[str]) -> Iterator[str]:
    """All imports of a module, those in functions and for type checkers included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            for alias in node.names:
                target = f"{base}.{alias.name}"
                yield target if target in known else base


def absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - (node.level - 1)]
    return ".".join([*kept, node.module] if node.module else kept)


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
