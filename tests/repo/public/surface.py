"""Reading the promises of the public surface: a name's object, a signature's parameters."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from typing import Any

SERVERS = "atroposlib.envs.server_handling"


def load(target: str) -> Any:
    module, _, path = target.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def written(text: str) -> list[tuple[str, Any]]:
    """(name, default) of parameters as one writes them; stars stay before their names."""
    arguments = ast.parse(f"def f({text}): ...").body[0].args  # type: ignore[attr-defined]
    names = [argument.arg for argument in arguments.args]
    without = len(names) - len(arguments.defaults)
    defaults = [inspect.Parameter.empty] * without + [
        node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
        for node in arguments.defaults
    ]
    found = list(zip(names, defaults))
    for star, more in (("*", arguments.vararg), ("**", arguments.kwarg)):
        found += [(star + more.arg, inspect.Parameter.empty)] if more else []
    return found
