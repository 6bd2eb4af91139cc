"""Aliases that an author gives to fields of a configuration: other names of the same setting.

rooms: int = Field(10, alias="num_rooms")    a flag and a key of both names
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel
from pydantic.fields import FieldInfo

Alias = str | AliasPath
ABSENT = object()


def field_aliases(field: FieldInfo) -> list[Alias]:
    """The names under which pydantic reads a field, besides its own."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [choice for choice in choices if choice is not None]


def flag_aliases(kind: type[BaseModel], prefix: str) -> dict[str, str]:
    """Flag by alias: {"env.num_rooms": "env.rooms"}; a path within a value has no flag."""
    return {
        prefix + alias: prefix + name
        for name, field in kind.model_fields.items()
        for alias in field_aliases(field)
        if isinstance(alias, str) and alias not in kind.model_fields
    }


def keys_of_aliases(kind: type[BaseModel]) -> set[str]:
    """The keys that aliases read, the first keys of paths included."""
    return {
        alias if isinstance(alias, str) else str(alias.path[0])
        for field in kind.model_fields.values()
        for alias in field_aliases(field)
    } - kind.model_fields.keys()


def with_field_names(kind: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with the names of fields in place of aliases; a field's own name wins."""
    by_alias = keys_of_aliases(kind)
    renamed = {key: value for key, value in values.items() if key not in by_alias}
    for name, field in kind.model_fields.items():
        if name not in renamed:
            read = (_value_at(alias, values) for alias in field_aliases(field))
            renamed |= {name: value for value in read if value is not ABSENT}
    return renamed


def _value_at(alias: Alias, values: Any) -> Any:
    """The value that an alias reads; ABSENT without it."""
    for key in [alias] if isinstance(alias, str) else alias.path:
        try:
            values = values[key]
        except (LookupError, TypeError):
            return ABSENT
    return values
