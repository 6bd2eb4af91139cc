"""Environments by name or file: the list of those at hand, and their three commands.

    atropos env list
    atropos env run gsm8k process --env.dataset_path test.jsonl
    atropos env run wordle.py serve
    atropos eval wordle.py --openai.base_url http://127.0.0.1:9001/v1

A name is a file of :mod:`atroposlib.environments`, with or without ``_server`` and ``_env``, or
an entry point of the group ``atroposlib.environments`` of an installed package.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import atroposlib.environments
from atroposlib.errors import ConfigError, boundary

ENTRY_POINTS = "atroposlib.environments"
SUFFIXES = ("_server", "_env")
USAGE = "FILE | FILE:CLASS | a name of `atropos env list`"
# Module that an environment imports -> the package behind it, and the extra that installs it.
EXTRAS = {
    "text_game": ("gymnasium", "examples"),
    "reasoning_gym": ("reasoning_gym", "reasoning-gym"),
    "verifier_pool": ("math_verify", "math"),
}


@dataclass(frozen=True)
class Listed:
    """One environment that a name leads to."""

    name: str
    module: str
    about: str
    needs: str = ""  # the extra of a package that is missing here


def listed() -> list[Listed]:
    """Environments of this package and of installed ones, without importing them."""
    found = []
    for folder in atroposlib.environments.__path__:
        for path in sorted(Path(folder).glob("[!_]*.py")):
            found.append(_described(path))
    for point in entry_points(group=ENTRY_POINTS):
        package = point.dist.name if point.dist else ""
        found.append(Listed(point.name, point.value, f"of the package {package}"))
    return found


def _described(path: Path) -> Listed:
    """The name, docstring and missing packages of a file, which is parsed and not run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {part for name in _imports(tree) for part in name.split(".")}
    missing = [
        extra
        for module, (package, extra) in EXTRAS.items()
        if module in imported and importlib.util.find_spec(package) is None
    ]
    about = (ast.get_docstring(tree) or "").split("\n")[0].rstrip(".")
    name = path.stem
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return Listed(name, f"{atroposlib.environments.__name__}.{path.stem}", about, *missing[:1])


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def show(argv: Sequence[str] | None = None) -> int:
    """Print the list."""
    parser = argparse.ArgumentParser(
        prog="atropos env list", description="List the environments at hand."
    )
    parser.add_argument("--json", action="store_true", help="one JSON list of objects")
    options = parser.parse_args(argv)
    found = listed()
    if options.json:
        import json

        print(json.dumps([asdict(one) for one in found], indent=2))
        return 0
    width = max(len(one.name) for one in found)
    for one in found:
        needs = f" (needs: pip install 'atroposlib[{one.needs}]')" if one.needs else ""
        print(f"{one.name:<{width}}  {one.about}{needs}")
    return 0


def run(argv: Sequence[str] | None = None) -> int:
    """Run ``serve``, ``process`` or ``evaluate`` of the environment that the first word names."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: atropos env run ENVIRONMENT serve|process|evaluate ...\n{USAGE}")
        return 0 if words else 2
    env_cls = load(words[0])
    sys.argv = [words[0], *words[1:]]
    env_cls.cli()
    return 0


def evaluate(argv: Sequence[str] | None = None) -> int:
    """Evaluate a model in the environment that the first word names."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: atropos eval ENVIRONMENT [--env.<field> VALUE] ...\n{USAGE}")
        return 0 if words else 2
    return run([words[0], "evaluate", *words[1:]])


def load(target: str) -> Any:
    """The environment class of a file or a name.

    Raises:
        ConfigError: there is none, or there are several and ``FILE:CLASS`` chooses none.
    """
    from atroposlib.envs.base import BaseEnv

    place, _, wanted = target.partition(":")
    module = _module_of(place)
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, BaseEnv)
        and value.__module__ == module.__name__
    }
    if wanted:
        found = {name: value for name, value in found.items() if name == wanted}
    if len(found) != 1:
        names = f"several environments ({', '.join(found)}): write {place}:NAME"
        raise ConfigError(f"{target}: {names if found else 'no environment in this file'}")
    return next(iter(found.values()))


def _module_of(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py" or path.is_file():
        if not path.is_file():
            raise ConfigError(f"{place}: no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` does
        sys.modules[path.stem] = module
        with boundary(place, None, "import"):
            spec.loader.exec_module(module)
        return module
    known = {one.name: one.module for one in listed()}
    named = {**known, **{one.rpartition(".")[2]: one for one in known.values()}}
    if place not in named:
        near = get_close_matches(place, named, 1, 0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(f"no file and no environment {place!r}{hint}: `atropos env list`")
    return importlib.import_module(named[place].partition(":")[0])
