"""Environments by name or file: list of available environments, and their commands.

    atropos env list
    atropos env run gsm8k process --env.dataset_path test.jsonl
    atropos env info gymnasium:Taxi-v4
    atropos eval wordle.py --openai.base_url http://127.0.0.1:9001/v1

A reference (:mod:`atroposlib.utils.command.references`) may also name a file of
:mod:`atroposlib.environments`, with or without ``_server`` and ``_env``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import atroposlib.environments
from atroposlib import __version__
from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.utils.command import references
from atroposlib.utils.command.parser import USAGE_ERROR, CommandParser, show as print_page
from atroposlib.utils.command.plugins import module_of_file
from atroposlib.utils.command.references import Listed

ADAPTERS = Path(__file__).parents[1] / "adapters"
USAGE = f"an ENVIRONMENT is {references.USAGE}"


def list_environments() -> list[Listed]:
    """Environments of this package and of installed packages, without imports."""
    return [*own_environments(), *references.installed_environments()]


@cache
def own_environments() -> tuple[Listed, ...]:
    """Environments of this package, by the text of their files."""
    folders = map(Path, atroposlib.environments.__path__)
    places = [place for folder in folders for place in (folder, folder / "library")]
    environments: dict[str, Listed] = {}
    for place in (*places, ADAPTERS):
        package = "atroposlib" if place == ADAPTERS else atroposlib.environments.__name__
        inside = f"{place.name}." * (place.name in ("library", ADAPTERS.name))
        for path in sorted(place.glob("[!_]*.py")):
            text = path.read_text(encoding="utf-8")
            name = path.stem.removesuffix("_server").removesuffix("_env")
            if "__main__" not in text or name in environments:
                continue
            tree = ast.parse(text)
            about = (ast.get_docstring(tree) or "").split("\n")[0].rstrip(".")
            module = f"{package}.{inside}{path.stem}"
            adapts = (ADAPTERS / f"{name}.py").is_file()
            kind = references.ADAPTER if adapts else kind_in(tree)
            environments[name] = Listed(name, module, about, "atroposlib", __version__, kind)
    return tuple(environments.values())


def kind_in(tree: ast.Module) -> str:
    """The first argument of ``Card(...)``; empty where there is no card."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    cards = (call.args[0] for call in calls if getattr(call.func, "id", "") == "Card")
    kinds = (card.value for card in cards if isinstance(card, ast.Constant))
    return str(next(kinds, ""))


def print_list(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        prog="atropos env list", description="List the environments at hand."
    )
    parser.add_argument("--json", action="store_true", help="one JSON list of objects")
    options, environments = parser.parse_args(argv), list_environments()
    names = Counter(entry.name for entry in environments)
    ours = {"atroposlib": ""}
    rows = [
        (
            f"{entry.package}:{entry.name}" if names[entry.name] > 1 else entry.name,
            entry.kind,
            ours.get(entry.package, f"{entry.package} {entry.version}".strip()),
            f"cannot be used: {entry.problem}" if entry.problem else entry.about,
        )
        for entry in environments
    ]
    name_width, kind_width = (max(len(row[i]) for row in rows) for i in range(2))
    lines = [
        f"{name:<{name_width}}  {kind:<{kind_width}}  {about}{f' ({of})' if of else ''}"
        for name, kind, of, about in rows
    ]
    document = json.dumps([asdict(entry) for entry in environments], indent=2)
    print_page((document if options.json else "\n".join(lines)) + "\n")
    return 0


def print_info(argv: Sequence[str] | None = None) -> int:
    """Print the package, the card and the settings of an environment."""
    from atroposlib.envs.function_env.card import card_of
    from atroposlib.envs.settings.config import BaseEnvConfig
    from atroposlib.envs.settings.identity import identity

    parser = CommandParser(prog="atropos env info", description=print_info.__doc__)
    parser.add_argument("environment", metavar="ENVIRONMENT", help=USAGE)
    env_cls = load(parser.parse_args(argv).environment)
    config, _ = env_cls.config_init()
    source = identity(env_cls, config)
    package = f"{source.package} {source.version}".strip() or "a file of no package"
    lines = [f"{env_cls.name or env_cls.__name__}: {inspect.getdoc(env_cls) or ''}".rstrip()]
    lines += [f"{'package':<10} {package}", f"{'digest':<10} {source.digest}"]
    if card := card_of(env_cls):
        shown = ("kind", "data", "licence", "turns", "extras", "floor", "best")
        lines += [f"{name:<10} {getattr(card, name)}" for name in shown if getattr(card, name)]
    fields = type(config).model_fields
    own = [name for name in fields if name not in BaseEnvConfig.model_fields]
    lines += ["settings"] * bool(own)
    lines += [
        f"  --env.{k} {getattr(config, k)!r}  {fields[k].description or ''}" for k in own
    ]
    print_page("\n".join(lines) + "\n")
    return 0


def run_environment(words: Sequence[str]) -> int:
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
    """The environment class that a reference leads to.

    Raises:
        ConfigError: there is none, or there are several and ``FILE:NAME`` chooses none.
        RolloutError: the file or the package cannot be imported.
    """
    is_file = target.partition(":")[0].endswith(".py")  # needs no list, which takes a while
    reference = references.resolve(target, [] if is_file else list_environments())
    module = _module_of(reference, target)
    env_cls = _class_in(module, reference.attribute, target)
    return _with_argument(env_cls, reference.argument) if reference.argument else env_cls


def _class_in(module: ModuleType, wanted: str, target: str) -> Any:
    from atroposlib.envs.base import BaseEnv

    # names that a module re-exports, e.g. an adapter
    exported = getattr(module, "__all__", ())
    classes = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseEnv)
        if value.__module__ == module.__name__ or name in exported or name == wanted
    }
    if wanted:
        classes = {name: value for name, value in classes.items() if name == wanted}
    if len(classes) != 1:
        several = f"several environments ({', '.join(classes)}): write {target}:NAME"
        raise ConfigError(f"{target}: {several if classes else 'no environment in this file'}")
    return next(iter(classes.values()))


def _with_argument(env_cls: Any, argument: str) -> Any:
    """The environment of an adapter with another default of the setting that selects it."""
    from atroposlib.envs.function_env.config import config_class

    module = sys.modules[env_cls.__module__]
    setting = {getattr(module, "ARGUMENT", "env_id"): argument}
    config = config_class(env_cls.name, env_cls.env_config_cls, {}, setting)
    more = {"env_config_cls": config, "__module__": env_cls.__module__}
    return type(env_cls.__name__, (env_cls,), {**more, "__doc__": env_cls.__doc__})


def print_settings(target: str) -> None:
    """Print JSON for launchers: settings that the code sets, and the names of all settings."""
    from atroposlib.envs.base import BaseEnvConfig
    from atroposlib.envs.settings.aliases import keys_of_aliases

    try:
        config, _ = load(target).config_init()
    except AtroposError as error:
        sys.exit(str(error))
    kinds = type(config).__mro__[: type(config).__mro__.index(BaseEnvConfig)]
    named = config.model_fields_set.union(*(vars(k).get("__annotations__", ()) for k in kinds))
    kept = named & {"group_size", "ensure_scores_are_not_same"}
    own = {name: getattr(config, name) for name in kept}
    own["seq_len"] = config.max_token_length
    fields = [*type(config).model_fields, *sorted(keys_of_aliases(type(config)))]
    print(json.dumps({"own": own, "fields": fields}))


def _module_of(reference: references.Reference, target: str) -> ModuleType:
    from atroposlib.envs.cli import importing

    if reference.listed is not None:
        with boundary(target, None, "import"):
            return importlib.import_module(reference.listed.module.partition(":")[0])
    path = reference.file
    if path is None or not path.is_file():
        raise ConfigError(f"{path}: no such file")
    sys.path.insert(0, str(path.resolve().parent))  # sys.path of `python FILE`
    taken = path.stem in sys.stdlib_module_names or path.stem == "atroposlib"
    name = f"env_{path.stem}" if taken else path.stem
    importing.add(name)
    with boundary(str(path), None, "import"):
        module = module_of_file(path.resolve(), name)
    importing.remove(name)
    return module
