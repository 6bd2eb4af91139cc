"""atropos env export ENVIRONMENT --to TARGET: an environment of this library in another library.

    atropos env export wordle.py --to verifiers               # writes wordle_verifiers/
    atropos env export gsm8k --to verifiers --out packages/gsm8k

A module here writes the files of a target, which import their code from atroposlib.adapters;
``openenv`` serves the environment instead (atropos env openenv).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from atroposlib.cli import env_files
from atroposlib.envs.settings.identity import data_files, identity
from atroposlib.errors import ConfigError
from atroposlib.utils.command import distribution
from atroposlib.utils.command.parser import CommandParser

# Target -> module:function that takes an ``Exported`` and returns texts by file name.
TARGETS = {"verifiers": "atroposlib.cli.export.verifiers:files"}


@dataclass(frozen=True)
class Exported:
    """An environment that is exported, and how the written package finds it.

    Example: Exported(Wordle, "wordle", 'load("wordle")', ["atropos-rl>=0.5.0", "wordle>=0.1"])
    """

    env_cls: Any
    name: str  # name of the environment, as an identifier
    expression: str  # class of the environment, in a module that imports ``Path`` and ``load``
    requires: Sequence[str]
    copied: Mapping[str, str]  # text by name of a file that belongs to no package


def main(argv: Sequence[str] | None = None) -> int:
    """Write the package and print the next commands."""
    parser = CommandParser(prog="atropos env export", description=__doc__)
    parser.add_argument("environment", metavar="ENVIRONMENT", help=env_files.USAGE)
    parser.add_argument("--to", required=True, choices=TARGETS, help="the other library")
    parser.add_argument("--out", type=Path, metavar="DIR", help="[NAME_TARGET]")
    options = parser.parse_args(argv)
    exported = found(options.environment)
    folder = options.out or Path(f"{exported.name}_{options.to}")
    module, _, function = TARGETS[options.to].partition(":")
    make: Callable[[Exported], dict[str, str]] = getattr(import_module(module), function)
    files = {**make(exported), **exported.copied}
    write_package(folder, files)
    print(
        f"{folder}/: {', '.join(sorted(files))}\nnext: pip install {folder}; see its README.md"
    )
    return 0


def found(reference: str) -> Exported:
    """The function environment that ``reference`` leads to.

    Raises ConfigError: it is a class, or reads data that no package holds.
    """
    env_cls = env_files.load(reference)
    definition = getattr(env_cls, "definition", None)
    if definition is None:
        raise ConfigError(f"{reference}: only environments of @environment are exported")
    config, _ = env_cls.config_init()
    source, card = identity(env_cls, config), definition.card
    name = re.sub(r"\W", "_", env_cls.name or env_cls.__name__)
    expression, copied = f"load({json.dumps(reference)})", {}
    requires = [distribution.requirement(extra_of(env_cls, card))]
    if source.package not in ("", "atroposlib"):
        requires.append(f"{source.package}>={source.version}")
    elif not source.package:
        if read := data_files(env_cls, config):
            raise ConfigError(
                f"{reference} reads {read[0]}, which no package holds: make it a package "
                "(docs/publishing.md) and export that"
            )
        file, _, attribute = reference.partition(".py")
        here = f"{name}_environment.py"
        copied[here] = Path(f"{file}.py").read_text(encoding="utf-8")
        beside = f"Path(__file__).with_name({json.dumps(here + attribute)})"
        expression = f"load(str({beside}))"
    return Exported(env_cls, name, expression, requires, copied)


def extra_of(env_cls: Any, card: Any) -> str:
    """The extra of atroposlib that an adapter, or a card, names; e.g. "[gymnasium]"."""
    adapter = env_cls.__module__.removeprefix("atroposlib.adapters.").replace("_", "-")
    named = re.findall(r"atropos-rl\[([\w,-]+)\]", card.extras if card else "")
    named += [adapter] * (adapter in distribution.extras())
    return f"[{','.join(sorted(set(named)))}]" if named else ""


def write_package(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts into a new or empty folder."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and is not empty: choose another --out")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
