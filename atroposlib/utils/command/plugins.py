"""Plug-ins: functions of packages and files of the user's in place of built-in ones.

    clip | MODULE:FUNCTION | path/FILE.py:FUNCTION | a name of an entry point

A kind of plug-in is a line below, and a registry of built-in names where it is used. A plug-in is
imported and its parameters are checked before a run starts. An error of its code is a
:class:`PluginError`, with file and line: another start would fail alike.

    python -m atroposlib.utils.command.plugins atroposlib.losses=mine.py:loss

checks plug-ins in a separate process and prints what a run records of each.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, wraps
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from atroposlib.errors import ConfigError, RolloutError, boundary, definition_of
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.command.references import digest

FORMS = "MODULE:FUNCTION, path/FILE.py:FUNCTION"
CHECK_S = 120.0  # bound of a check in a separate process; torch takes seconds to import


class PluginError(ConfigError):
    """The code of a plug-in failed, or returned something else than its kind has to."""


@dataclass(frozen=True)
class Kind:
    """A kind of plug-in: its name in sentences, its group of entry points, its parameters."""

    name: str
    group: str
    parameters: tuple[str, ...]  # it is called with these, by position
    more: bool = False  # it is also called with keywords that only its caller knows
    may_await: bool = False  # its caller awaits the result of an async function

    @property
    def call(self) -> str:
        return f"({', '.join(self.parameters)}{', ...' * self.more})"


LOSS = Kind("loss", "atroposlib.losses", ("batch", "settings"))
ESTIMATOR = Kind("advantage", "atroposlib.estimators", ("rewards", "groups", "settings"))
FILTER = Kind("group_filter", "atroposlib.filters", ("rows", "settings"))
SHAPING = Kind(
    "reward_shaping",
    "atroposlib.shaping",
    ("rewards", "settings", "lengths", "finish_reasons"),
)
PUBLISHER = Kind(
    "weight_publisher", "atroposlib.publishers", ("cfg", "engines", "announce", "on_wait")
)
TRACKER = Kind("tracker", "atroposlib.trackers", ("run",))
REWARD = Kind("reward", "atroposlib.rewards", ("completions",), more=True)
SAMPLER = Kind("sampler", "atroposlib.samplers", ("tasks",), more=True)
GATE = Kind("gate", "atroposlib.gates", (), more=True)
PLUGIN_KINDS = (
    LOSS,
    ESTIMATOR,
    FILTER,
    SHAPING,
    PUBLISHER,
    TRACKER,
    REWARD,
    SAMPLER,
    GATE,
)
KINDS = {kind.group: kind for kind in PLUGIN_KINDS}


@dataclass(frozen=True)
class Plugin:
    """The record of a plug-in in a run."""

    group: str
    name: str  # as the settings have it
    target: str  # MODULE:FUNCTION or FILE.py:FUNCTION
    digest: str  # digest of its file, or of its package's folder
    package: str = ""  # the installed package of an entry point, with its version


def target_of(kind: Kind, name: str, builtins: Iterable[str] = ()) -> str | None:
    """Return the MODULE:FUNCTION or FILE.py:FUNCTION of a name; None for a built-in one.

    Raises ConfigError: the name is unknown; names the nearest ones.
    """
    known = sorted(builtins)
    if name in known:
        return None
    place, _, attribute = name.partition(":")
    if place and attribute:
        return name
    points = _entry_points(kind.group)
    if name in points:
        return points[name].value
    hint = did_you_mean(name, [*known, *points])
    listed = ", ".join([*known, *sorted(points)])
    there_are = f"; there are: {listed}" if listed else ""
    own = f"or write {FORMS}, or an entry point {kind.group}"
    raise ConfigError(f"{kind.name} {name!r} is unknown{hint}{there_are}; {own}")


def valid_name(kind: Kind, name: str, builtins: Iterable[str] = ()) -> str:
    """Return ``name``, for a validator of settings; raises as :func:`target_of`."""
    target_of(kind, name, builtins)
    return name


def load_plugin(kind: Kind, name: str) -> Callable[..., Any]:
    """Import the plug-in of a name that is no built-in one, and check its parameters.

    Errors in a call are a PluginError with file and line; classes, and rewards, whose errors are
    those of a rollout, are returned as they stand.

    Raises:
        ConfigError: it cannot be imported, or not be called as its kind is.
    """
    target = target_of(kind, name)
    assert target is not None
    function: Callable[..., Any] = _imported(kind, target)
    where = definition_of(function)
    at = f"{where}: " if where else ""
    try:
        signature = inspect.signature(function)
        bind = signature.bind_partial if kind.more else signature.bind
        bind(*kind.parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{at}{kind.name} {name} has to take {kind.call}: {error}"
        ) from error
    if inspect.iscoroutinefunction(function) and not kind.may_await:
        raise ConfigError(f"{at}{kind.name} {name} is async: write `def`, not `async def`")
    if isinstance(function, type) or kind.more:
        return function

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            with boundary(f"{kind.name} {name}", None, "call", function):
                return function(*args, **keywords)
        except RolloutError as error:
            raise PluginError(str(error)) from error

    return call


def result_error(kind: Kind, function: Any, problem: str) -> PluginError:
    """The error of a result that does not have the form of its kind, with the function's line."""
    where = definition_of(inspect.unwrap(function))
    return PluginError(f"{f'{where}: ' if where else ''}{kind.name} {problem}")


def record_of(kind: Kind, name: str) -> Plugin:
    """The record of a plug-in; raises as :func:`load_plugin`."""
    load_plugin(kind, name)
    target = str(target_of(kind, name))
    module, _, _ = target.partition(":")
    point = _entry_points(kind.group).get(name) if ":" not in name else None
    package = f"{point.dist.name} {point.dist.version}" if point and point.dist else ""
    return Plugin(kind.group, name, target, _digest(module), package)


def _digest(module: str) -> str:
    """Digest of a file, or of the whole package that a module is a part of."""
    if module.endswith(".py"):
        return digest([Path(module).resolve()])
    top = sys.modules[module.partition(".")[0]]
    file = getattr(top, "__file__", None)
    if file is None:  # a folder without __init__.py, or a built-in module
        file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        return f"sha256:{hashlib.sha256(module.encode()).hexdigest()[:16]}"
    path = Path(file)
    return digest([path.parent if path.name == "__init__.py" else path])


@cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def _imported(kind: Kind, target: str) -> Any:
    place, _, attribute = target.partition(":")
    try:
        with boundary(f"{kind.name} {target}", None, "import"):
            module = _file(place) if place.endswith(".py") else _module(place)
    except RolloutError as error:
        raise ConfigError(str(error)) from error
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            functions = [name for name, entry in vars(module).items() if callable(entry)]
            hint = did_you_mean(attribute, functions)
            raise ConfigError(f"{kind.name} {target}: no {attribute!r} in {place}{hint}")
        value = getattr(value, part)
    if not callable(value):
        raise ConfigError(f"{kind.name} {target}: {attribute} is no function")
    return value


def _module(name: str) -> ModuleType:
    """A module, also one of the working directory, as ``python -m`` finds it."""
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))
    return importlib.import_module(name)


def _file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise ConfigError(f"{place}: no such file in {Path.cwd()}")
    path = path.resolve()
    # The digest keeps two files of a name apart, and modules of other packages in place.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for modules of the same folder
    return module_of_file(path, name)


def module_of_file(path: Path, name: str) -> ModuleType:
    """Run a file as the module ``name``; the errors of its code are raised."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def main(argv: Sequence[str]) -> int:
    """Check the plug-ins of the words GROUP=NAME; print them as JSON; 2 with a line if one fails."""
    try:
        records = [
            record_of(KINDS[group], name)
            for group, _, name in (word.partition("=") for word in argv)
        ]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps([asdict(plugin) for plugin in records]))
    return 0


if __name__ == "__main__":
    # The module under its own name, so that the classes of the caller are those of the plug-in.
    from atroposlib.utils.command import plugins

    sys.exit(plugins.main(sys.argv[1:]))
