"""Environments by name or file: the list of those at hand, and their commands.

    atropos env list
    atropos env run gsm8k process --env.dataset_path test.jsonl
    atropos eval wordle.py --openai.base_url http://127.0.0.1:9001/v1

A name is a file of :mod:`atroposlib.environments`, with or without ``_server`` and ``_env``, or
an entry point of the group ``atroposlib.environments`` of an installed package.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import atroposlib.environments
from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.utils.command.parser import USAGE_ERROR, CommandParser, did_you_mean
from atroposlib.utils.command.parser import show as print_page

ENTRY_POINTS = "atroposlib.environments"
ADAPTERS = Path(__file__).parents[1] / "adapters"
USAGE = "an ENVIRONMENT is a FILE, FILE:CLASS or a name of `atropos env list`"


@dataclass(frozen=True)
class Listed:
    """One environment that a name leads to."""

    name: str
    module: str
    about: str


def listed() -> list[Listed]:
    """Environments of this package and of installed ones, without importing them."""
    folders = map(Path, atroposlib.environments.__path__)
    places = [place for folder in folders for place in (folder, folder / "library")]
    found: list[Listed] = []
    for place in (*places, ADAPTERS):
        package = "atroposlib" if place == ADAPTERS else ENTRY_POINTS
        inside = f"{place.name}." * (place.name in ("library", ADAPTERS.name))
        for path in sorted(place.glob("[!_]*.py")):
            text = path.read_text(encoding="utf-8")
            about = ast.get_docstring(ast.parse(text)) or ""
            name = path.stem.removesuffix("_server").removesuffix("_env")
            if "__main__" in text and name not in {one.name for one in found}:
                module = f"{package}.{inside}{path.stem}"
                found.append(Listed(name, module, about.split("\n")[0].rstrip(".")))
    for point in entry_points(group=ENTRY_POINTS):
        package = point.dist.name if point.dist else ""
        found.append(Listed(point.name, point.value, f"of the package {package}"))
    return found


def show(argv: Sequence[str] | None = None) -> int:
    """Print the list."""
    parser = CommandParser(
        prog="atropos env list", description="List the environments at hand."
    )
    parser.add_argument("--json", action="store_true", help="one JSON list of objects")
    options, found = parser.parse_args(argv), listed()
    width = max(len(one.name) for one in found)
    lines = [f"{one.name:<{width}}  {one.about}" for one in found]
    asked = json.dumps([asdict(one) for one in found], indent=2)
    print_page((asked if options.json else "\n".join(lines)) + "\n")
    return 0


def run(words: Sequence[str]) -> int:
    """Run ``serve``, ``process`` or ``evaluate`` of the environment that the first word names."""
    return _passed_on("atropos env run ENVIRONMENT serve|process|evaluate", words, ())


def evaluate(words: Sequence[str]) -> int:
    """Evaluate a model in the environment that the first word names, or ``diff`` two results."""
    if words and words[0] == "diff":
        from atroposlib.cli import eval_diff

        return eval_diff.main(words[1:])
    return _passed_on("atropos eval ENVIRONMENT | diff A B", words, ("evaluate",))


def _passed_on(usage: str, words: Sequence[str], mode: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: {usage} [--env.<field> VALUE] ...\n{USAGE}")
        return 0 if words else USAGE_ERROR
    env_cls = load(words[0])
    sys.argv = [words[0], *mode, *words[1:]]
    env_cls.cli()
    return 0


def load(target: str) -> Any:
    """The environment class of a file or a name.

    Raises:
        ConfigError: there is none, or there are several and ``FILE:CLASS`` chooses none.
        RolloutError: the file cannot be imported.
    """
    from atroposlib.envs.base import BaseEnv

    place, _, wanted = target.partition(":")
    module = _module_of(place)
    exported = getattr(module, "__all__", ())  # of another module, such as an adapter
    own = {
        k: v
        for k, v in vars(module).items()
        if getattr(v, "__module__", "") == module.__name__ or k in exported
    }
    found = {k: v for k, v in own.items() if isinstance(v, type) and issubclass(v, BaseEnv)}
    if wanted:
        found = {name: value for name, value in found.items() if name == wanted}
    if len(found) != 1:
        several = f"several environments ({', '.join(found)}): write {place}:NAME"
        raise ConfigError(f"{target}: {several if found else 'no environment in this file'}")
    return next(iter(found.values()))


def print_settings(target: str) -> None:
    """Print as JSON what launchers ask: settings that the code names itself, and all names."""
    from atroposlib.envs.base import BaseEnvConfig

    try:
        config, _ = load(target).config_init()
    except AtroposError as error:
        sys.exit(str(error))
    kinds = type(config).__mro__[: type(config).__mro__.index(BaseEnvConfig)]
    named = config.model_fields_set.union(*(vars(k).get("__annotations__", ()) for k in kinds))
    kept = named & {"group_size", "ensure_scores_are_not_same"}
    own = {name: getattr(config, name) for name in kept}
    own["seq_len"] = config.max_token_length
    print(json.dumps({"own": own, "fields": [*type(config).model_fields]}))


def _module_of(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py":
        from atroposlib.envs.cli import importing

        if not path.is_file():
            raise ConfigError(f"{place}: no such file")
        sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` does
        taken = path.stem in sys.stdlib_module_names or path.stem == "atroposlib"
        name = f"env_{path.stem}" if taken else path.stem
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        importing.add(name)
        with boundary(place, None, "import"):
            spec.loader.exec_module(module)
        importing.remove(name)
        return module
    known = {one.name: one.module for one in listed()}
    named = {**{one.rpartition(".")[2]: one for one in known.values()}, **known}
    if place not in named:
        hint = did_you_mean(place, named)
        raise ConfigError(f"no file and no environment {place!r}{hint} (`atropos env list`)")
    return importlib.import_module(named[place].partition(":")[0])
