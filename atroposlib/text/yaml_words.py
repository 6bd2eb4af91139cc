"""Reader of YAML files and values: plain words follow version 1.2.

PyYAML follows version 1.1, where 1e-5 is text, ``on`` true, 010 eight and 1:30 ninety. Here 1e-5
is a number and ``no`` text; a word that begins with a needless 0 is text, so that run_name=007
keeps its zeros. A key that stands twice in a mapping is refused, because one of its values
would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from atroposlib.errors import ConfigError

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
        names = [key.value for key, _ in node.value if isinstance(key.value, str)]
        twice = sorted({name for name in names if names.count(name) > 1 and name != "<<"})
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"{twice[0]} stands twice in one mapping", node.start_mark
            )
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in PLAIN:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), [*_first]
    )
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("$"), [""])


def parse_yaml(text: str, where: str) -> Any:
    """The value of the YAML in ``text``. Raises ConfigError if it is not YAML."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain values only
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML: {' '.join(str(error).split())}") from error
