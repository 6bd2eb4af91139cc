"""Fields of a settings model as flags of a command line: names, types, help."""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import Settings
from atroposlib.settings.sentences import Contradiction, Contradictions, settings_error

S = TypeVar("S", bound=BaseModel)
_CONTAINERS = (set, frozenset, BaseModel, Sequence, Mapping)
_NAMES = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT", Any: "JSON|TEXT"}


def flag_of(name: str) -> str:
    """``batch_size`` -> ``--batch-size``."""
    return "--" + name.replace("_", "-")


def flag_or_override(name: str) -> str:
    return f"{flag_of(name)} (or {name}=...)"


def kinds_of(annotation: Any) -> list[Any]:
    """The alternatives of a type but None, ``list[int]`` given as ``list``."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in kinds_of(part)]
    origin = get_origin(annotation)
    kind = annotation if origin in (None, Literal) else origin
    return [] if kind is type(None) else [kind]


def choices_of(kind: Any) -> list[Any]:
    """The values of a Literal or of an enumeration; empty for the remaining kinds."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    is_enumeration = isinstance(kind, type) and issubclass(kind, Enum)
    return [member.value for member in kind] if is_enumeration else []


def chosen_value(annotation: Any, text: str) -> Any:
    """The choice that is written as ``text``, for example the number 2 of a Literal; else the text."""
    kinds = kinds_of(annotation)
    for choice in chain.from_iterable(map(choices_of, kinds)):
        shown = str(choice)
        if text == shown or (isinstance(choice, bool) and text == shown.lower()):
            return text if str in kinds else choice
    return text


def type_name(annotation: Any) -> str:
    """The type of a flag's value, for example ``INT`` or ``STOP_TRAIN|NONE``."""
    names: list[str] = []
    for kind in kinds_of(annotation):
        if choices := choices_of(kind):
            names += map(str, choices)
        else:
            is_container = isinstance(kind, type) and issubclass(kind, _CONTAINERS)
            names.append(_NAMES.get(kind, "JSON" if is_container else "TEXT"))
    return "|".join(dict.fromkeys(names))


def add_flag(
    group: argparse._ActionsContainer,
    name: str,
    field: FieldInfo,
    *aliases: str,
    note: str = "",
    **options: Any,
) -> None:
    """Add the flag of a field, which takes text that pydantic converts.

    A flag of a boolean has ``--no-``; a list takes several words. ``note`` stands behind the
    default in the help.
    """
    about, kinds = field.description or "", kinds_of(field.annotation)
    is_plain = field.is_required() or field.default in (None, []) or field.default is False
    shown = "" if is_plain or "default" in about else str(field.default)
    if shown or note:
        about += f" ({'; '.join(filter(None, (shown, note)))})"
    options = {"dest": name, "help": about.replace("%", "%%"), **options}
    if bool in kinds:
        options.setdefault("action", argparse.BooleanOptionalAction)
    else:
        options["metavar"] = type_name(field.annotation).replace("JSON", "TEXT")
        options.setdefault("nargs", "+" if list in kinds else None)
    group.add_argument(flag_of(name), *aliases, **options)


def validate_as(
    kind: type[S],
    settings: Settings,
    absent: Callable[[str], str] = flag_or_override,
    known: Iterable[str] = (),
) -> S:
    """The settings as ``kind``.

    Args:
        absent: place of a setting that no source gives.
        known: names that an unknown name may mean.

    Raises:
        ConfigError: each problem under the place of its setting.
    """

    def place(key: str) -> str:
        nearest = settings.place(key)
        return absent(key) if nearest == key else nearest

    for key in settings.values:
        if not isinstance(key, str):
            raise ConfigError(f"{place(str(key))} is no setting: the name should be text")
    try:
        return kind(**settings.values)
    except ValidationError as error:
        raise settings_error(error, place, known) from error
    except Contradictions as error:
        raise ConfigError(
            "; ".join(
                _with_place(entry, settings.places, place) for entry in error.contradictions
            )
        ) from error


def _with_place(
    contradiction: Contradiction, places: Mapping[str, str], place: Callable[[str], str]
) -> str:
    """The reason under the place of the first of its settings that a source gives."""
    names = [name for name in contradiction.names if name in places]
    return f"{place(names[0])}: {contradiction.reason}" if names else contradiction.reason
