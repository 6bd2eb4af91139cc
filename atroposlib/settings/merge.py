"""Settings of several sources, merged: values, and the place of each.

    code  <  files, in their order  <  environment variables  <  command line

A place is what an error about the value begins with: ``run.yaml:3: optim.lr``, ``--lr``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from atroposlib.errors import ConfigError


@dataclass(frozen=True)
class Assignment:
    """A value that a source gives to a setting, under the name that the source has for it."""

    key: str  # spelling in the source: "actor.optimizer.lr"
    value: Any
    place: str  # "run.yaml:3: actor.optimizer.lr", "--lr", "command line: lr"


@dataclass
class Settings:
    """Values by name, nested or with dots, the place of each, and notes."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # by names with dots
    notes: list[str] = field(default_factory=list)

    def place(self, key: str) -> str:
        """The place of ``key``, or of the closest section above it; without any the key.

        A name below a list is in the only item that has it.
        """
        section, _, name = key.rpartition(".")
        item = re.compile(rf"{re.escape(section)}[.][0-9]+[.]{re.escape(name)}")
        items = [place for known, place in self.places.items() if item.fullmatch(known)]
        if key not in self.places and len(items) == 1:
            return items[0]
        above, below = key, ""
        while above and above not in self.places:
            above, _, last = above.rpartition(".")
            below = f".{last}{below}"
        return self.places[above] + below if above else key


def merge(*sources: Settings, has_sections: bool = False) -> Settings:
    """Later sources win; nested mappings are merged, not replaced.

    With ``has_sections`` a mapping over a value of a file is a ConfigError, and so is an index
    beyond the end of a list; else the mapping replaces the value.
    """
    merged = Settings()
    for source in sources:
        for key, value in source.values.items() if has_sections else ():
            _require_section(merged, source, key, merged.values.get(key), value)
        merged.values = merge_dicts(merged.values, source.values)
        merged.places |= source.places
        merged.notes += source.notes
    return merged


def _require_section(earlier: Settings, later: Settings, key: str, old: Any, new: Any) -> None:
    if not isinstance(new, Mapping):
        return
    if isinstance(old, list) and _are_indices(new):
        for index in new:
            if int(index) >= len(old):
                raise ConfigError(
                    f"{_place_within(later, f'{key}.{index}')}: the list has {len(old)}"
                    f" items, from 0 to {len(old) - 1}"
                )
        old = dict(zip(map(str, range(len(old))), old))
    if isinstance(old, Mapping):
        for name in old.keys() & new.keys():
            _require_section(earlier, later, f"{key}.{name}", old[name], new[name])
    elif old is not None and key in earlier.places:
        raise ConfigError(f"{earlier.place(key)} should be a section, not {old!r}")


def _place_within(settings: Settings, key: str) -> str:
    """The place of the first value at ``key`` or below."""
    names = [name for name in settings.places if f"{name}.".startswith(f"{key}.")]
    return settings.places[names[0]] if names else key


def _are_indices(mapping: Mapping[str, Any]) -> bool:
    return bool(mapping) and all(str(name).isdecimal() for name in mapping)


def merge_dicts(*dicts: Mapping[str, Any]) -> dict[str, Any]:
    """Later mappings win; nested mappings are merged. The order is that of the last values.

    A mapping of indices changes items of a list: {"a": [1, 2]}, {"a": {"1": 3}} -> {"a": [1, 3]}.
    """
    merged: dict[str, Any] = {}
    for mapping in dicts:
        for key, value in mapping.items():
            old = merged.pop(key, None)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                value = merge_dicts(old, value)
            elif isinstance(old, list) and isinstance(value, Mapping) and _are_indices(value):
                value = _with_items(old, value)
            merged[key] = value
    return merged


def _with_items(items: list[Any], changes: Mapping[str, Any]) -> Any:
    """The list with changed items; the changes alone where an index is beyond its end."""
    if any(int(index) >= len(items) for index in changes):
        return changes
    by_index = dict(zip(map(str, range(len(items))), items))
    merged = merge_dicts(by_index, {str(int(index)): changes[index] for index in changes})
    return [merged[index] for index in by_index]


def as_tree(values: Mapping[str, Any]) -> dict[str, Any]:
    """Names with dots as sections: {"api.port": 1} -> {"api": {"port": 1}}."""
    return merge_dicts(
        *(
            reduce(lambda below, name: {name: below}, key.split(".")[::-1], value)
            for key, value in values.items()
        )
    )


def assignments_of(settings: Settings) -> Iterator[Assignment]:
    """The values by names with dots, in their order."""

    def below(tree: Mapping[str, Any], above: str) -> Iterator[Assignment]:
        for name, value in tree.items():
            key = f"{above}{name}"
            if isinstance(value, Mapping):
                yield from below(value, f"{key}.")
            else:
                yield Assignment(key, value, settings.place(key))

    yield from below(settings.values, "")
