"""Reader of YAML files and values: plain words follow version 1.2.

PyYAML follows version 1.1, where 1e-5 is text, ``on`` true, 010 eight and 1:30 ninety. Here 1e-5
is a number and ``no`` text, which a setting of type bool accepts; a word that begins with a
needless 0 is text, so that run_name=007 keeps its zeros. A key that stands twice in a mapping is
refused, because one of its values would be lost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import Settings

PLAIN = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        names = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value != "<<":
                if key.value in names:
                    problem = f"{key.value} stands twice in one mapping"
                    raise yaml.constructor.ConstructorError(
                        None, None, problem, key.start_mark
                    )
                names.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in PLAIN:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), [*_first]
    )
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("$"), [""])


def parse_yaml(text: str, where: str) -> Any:
    """The value of the YAML in ``text``. Raises ConfigError if it is not YAML."""
    return _parse(text, where)[0]


def read_yaml(path: str | Path) -> Settings:
    """The settings of a file, each with its line; paths below ``~/`` are below the home folder.

    Raises ConfigError: the file cannot be read, or is no mapping of names to values.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: no text in UTF-8 ({error.reason})") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {str(error.strerror).lower()}") from error
    tree, node = _parse(text, str(path))
    if not isinstance(tree, dict | None):
        raise ConfigError(f"{path} holds no settings: write a mapping (name: value)")
    return Settings(at_home(tree or {}), dict(_places(node, str(path))))


def _parse(text: str, where: str) -> tuple[Any, Any]:
    """The value and its node."""
    loader = _Loader(text)  # a SafeLoader: builds plain values only
    try:
        node = loader.get_single_node()
        return None if node is None else loader.construct_document(node), node
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None and "\n" in text else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        is_yaml = isinstance(error, yaml.constructor.ConstructorError)
        what = problem if is_yaml else f"not YAML: {problem}"
        raise ConfigError(f"{where}{line}: {what}") from error
    finally:
        loader.dispose()


def _places(node: Any, path: str, above: str = "") -> Iterator[tuple[str, str]]:
    """Every key below a node, and its place."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{above}{key.value}"
            yield name, f"{path}:{key.start_mark.line + 1}: {name}"
            yield from _places(value, path, f"{name}.")
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield f"{above}{i}", f"{path}:{item.start_mark.line + 1}: {above}{i}"
            yield from _places(item, path, f"{above}{i}.")


def at_home(loaded: Any) -> Any:
    """Values of a YAML file; texts that begin with ``~/`` as paths, which no shell expands there.

    Example: {"save_path": "~/runs"} -> {"save_path": "/srv/ann/runs"}
    """
    if isinstance(loaded, dict):
        return {key: at_home(value) for key, value in loaded.items()}
    if isinstance(loaded, list):
        return [at_home(value) for value in loaded]
    below = isinstance(loaded, str) and loaded.startswith("~/")
    return os.path.expanduser(loaded) if below else loaded
