"""Configuration from several places: flags, files and code, merged into one."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from pydantic import BaseModel, create_model

from atroposlib.errors import ConfigError

_OPTION = re.compile(r"--|-[A-Za-z]$")


def get_prefixed_pydantic_model(model: type[BaseModel], prefix: str) -> type[BaseModel]:
    """The same fields under ``prefix`` + name; type, description, default and limits stay."""
    fields: dict[str, Any] = {
        prefix + name: (field.annotation, copy(field))
        for name, field in model.model_fields.items()
    }
    return create_model(f"{model.__name__}With{prefix.strip('.').title()}Prefix", **fields)


def merge_dicts(*dicts: Mapping[str, Any]) -> dict[str, Any]:
    """Later mappings win; mappings inside them are merged, not replaced."""
    merged: dict[str, Any] = {}
    for mapping in dicts:
        for key, value in mapping.items():
            old = merged.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                value = merge_dicts(old, value)
            merged[key] = value
    return merged


def extract_namespace(source: BaseModel | Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose names begin with ``prefix``, without it."""
    values = source.model_dump() if isinstance(source, BaseModel) else source
    return {
        name[len(prefix) :]: value for name, value in values.items() if name.startswith(prefix)
    }


def adjust_model_defaults(
    model_class: type[BaseModel], defaults: Mapping[str, Any] | BaseModel
) -> type[BaseModel]:
    """A subclass ``<Name>WithDefaults`` whose defaults are those given.

    Raises:
        ConfigError: a default for a field that the model does not have.
    """
    # dict() of a model keeps the models inside it, which model_dump() would take apart.
    values = dict(defaults)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name not in model_class.model_fields:
            raise ConfigError(f"{model_class.__name__} has no field {name!r} to adjust")
        field = copy(model_class.model_fields[name])
        field.default, field.default_factory = value, None
        fields[name] = (field.annotation, field)
    return create_model(f"{model_class.__name__}WithDefaults", __base__=model_class, **fields)


def get_double_dash_flags(argv: Sequence[str] | None = None) -> dict[str, str | None | bool]:
    """The flags of a command line: text, None for the word ``None``, True without a value.

    A value may begin with one dash, as in ``--env.total_steps -1``; only ``--`` and one dash
    with one letter begin an option.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    flags: dict[str, str | None | bool] = {}
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.startswith("--") or word == "--":
            continue
        name, has_value, value = word[2:].partition("=")
        if not has_value and i < len(words) and not _OPTION.match(words[i]):
            has_value, value = "=", words[i]
            i += 1
        flags[name] = True if not has_value else None if value == "None" else value
    return flags
