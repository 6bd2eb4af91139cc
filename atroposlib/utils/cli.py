"""The original's import path of functions on settings models, namespaces and flags."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import merge_dicts as merge_dicts

_OPTION = re.compile(r"--|-[A-Za-z]$")


def get_prefixed_pydantic_model(base_model: type[BaseModel], prefix: str) -> type[BaseModel]:
    """Copy of ``base_model`` with ``prefix`` before each name; types, defaults and limits stay."""
    fields: dict[str, Any] = {
        prefix + name: (field.annotation, copy(field))
        for name, field in base_model.model_fields.items()
    }
    return create_model(
        f"{base_model.__name__}With{prefix.strip('.').title()}Prefix", **fields
    )


def extract_namespace(source: BaseModel | Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose names begin with ``prefix``, without it."""
    values = source.model_dump() if isinstance(source, BaseModel) else source
    return {
        name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)
    }


def adjust_model_defaults(
    model_class: type[BaseModel], defaults: Mapping[str, Any] | BaseModel
) -> type[BaseModel]:
    """A subclass ``<Name>WithDefaults`` with the given ``defaults``.

    Raises ConfigError: a default for a field that the model does not have.
    """
    # dict() of a model keeps the models inside it, which model_dump() would take apart.
    values = dict(defaults)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name not in model_class.model_fields:
            raise ConfigError(f"{model_class.__name__} has no field {name!r} to adjust")
        fields[name] = with_default(model_class.model_fields[name], value)
    return create_model(f"{model_class.__name__}WithDefaults", __base__=model_class, **fields)


def with_default(field: FieldInfo, value: Any) -> Any:
    """A field for ``create_model``: type, description and limits of ``field``, another default."""
    changed = copy(field)
    changed.default, changed.default_factory = value, None
    return changed.annotation, changed


def get_double_dash_flags(argv: Sequence[str] | None = None) -> dict[str, str | None | bool]:
    """The flags of a command line: text, None for the word ``None``, True without a value.

    A value may begin with a dash, as in ``--env.total_steps -1``; only ``--`` and a dash
    with a single letter begin an option.
    """
    pairs = flag_pairs(sys.argv[1:] if argv is None else argv)
    return {name: value for name, value in pairs if name}


def flag_pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None | bool]]:
    """Each flag and its value; a word of no flag has the name ""."""
    following = deque(words)
    while following:
        word = following.popleft()
        if not word.startswith("--") or word == "--":
            yield "", word
            continue
        name, has_value, value = word[2:].partition("=")
        if not has_value and following and not _OPTION.match(following[0]):
            has_value, value = "=", following.popleft()
        yield name, True if not has_value else None if value == "None" else value
