"""Command-line flags such as ``--env.group_size 8``: names, values, help page. Pure.

Both ``--k v`` and ``--k=v``. A value may begin with one dash. Lists and mappings are JSON.
``None`` is null. A flag of a boolean field without a value is true.
"""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from atroposlib.envs.settings.config import (
    ENV_NAMESPACE,
    NAMESPACE_SEP,
    nearest,
    with_new_names,
)
from atroposlib.errors import ConfigError
from atroposlib.utils.cli import get_double_dash_flags

CONFIG_FLAG = "config"
HELP_FLAGS = ("--help", "-h")


def read_flags(words: Sequence[str], fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """The values of a command line by flag; ``config`` is the path of the YAML file.

    Raises:
        ConfigError: an unknown flag, an unreadable value, or a word without a flag.
    """
    strays = [
        word
        for before, word in zip(["", *words], words)
        if word == "--" or not word.startswith("--") and not _takes_next(before)
    ]
    if strays:
        raise ConfigError(f"{strays[0]!r} belongs to no flag; write --<name> <value>")
    given: dict[str, Any] = {}
    env = ENV_NAMESPACE + NAMESPACE_SEP
    for name, text in with_new_names(get_double_dash_flags(words), env).items():
        if name == CONFIG_FLAG:
            if not isinstance(text, str):
                raise ConfigError("--config: the path of a YAML file is missing")
            given[name] = text
        elif name in fields:
            given[name] = parse_value(name, fields[name].annotation, text)
        else:
            raise ConfigError(f"unknown flag --{name}{_hint(name, [*fields, CONFIG_FLAG])}")
    return given


def _takes_next(word: str) -> bool:
    return word.startswith("--") and word != "--" and "=" not in word


def _hint(name: str, known: Sequence[str]) -> str:
    # Often the namespace is missing (--group_size); spelling alone may not find that.
    same = [flag for flag in known if flag.rpartition(".")[2] == name.rpartition(".")[2]]
    return nearest(f"--{name}", [f"--{flag}" for flag in same or known])


def parse_value(name: str, annotation: Any, text: str | bool | None) -> Any:
    """The value of a flag's text; pydantic converts it to the field's type later."""
    if text is None:
        return None
    if text is True or text is False:
        if not _may_be(annotation, (bool,)):
            raise ConfigError(f"--{name}: a value is missing")
        return text
    if text[:1] in ("[", "{") and _may_be(annotation, _CONTAINERS):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            if not _may_be(annotation, (str,)):
                raise ConfigError(f"--{name}: {text!r} is not JSON: {error}") from error
    return text


_CONTAINERS = (list, dict, tuple, set, frozenset, BaseModel, Sequence, Mapping)


def _may_be(annotation: Any, kinds: tuple[type, ...]) -> bool:
    """Whether ``annotation`` admits a value of one of ``kinds``."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return any(_may_be(option, kinds) for option in get_args(annotation))
    kind = origin or annotation
    if not isinstance(kind, type):
        return kind is Any
    is_text = issubclass(kind, (str, bytes))  # str is a Sequence, but no container here
    return issubclass(kind, kinds) and (not is_text or str in kinds)


def help_page(
    program: str,
    about: str,
    modes: Mapping[str, str],
    fields: Mapping[str, FieldInfo],
    defaults: Mapping[str, Any],
) -> str:
    """The help text: every flag with its meaning and the default in this environment."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=about,
        add_help=False,
        usage=f"%(prog)s {'|'.join(modes)} [--config YAML] [--env.<field> VALUE] ...",
        epilog="; ".join(f"{mode}: {text}" for mode, text in modes.items()),
    )
    parser.add_argument("--config", metavar="YAML", help="settings file; flags win over it")
    for name, field in fields.items():
        default = defaults.get(name, field.get_default(call_default_factory=True))
        text = f"{field.description or ''} [{default}]".replace("%", "%%")
        parser.add_argument(f"--{name}", metavar="VALUE", help=text)
    return parser.format_help()
