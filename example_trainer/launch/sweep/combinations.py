"""Combinations of settings from the section ``sweep`` of a run's file. Pure.

    sweep: {lr: [1e-5, 2e-5], seed: [0, 1, 2]}           every combination, the last key fastest
    sweep: [{lr: 1e-5, seed: 0}, {lr: 2e-5, seed: 1}]    these

Keys are those that the command line takes. The folder of a combination is named by its values, so that the
same section names the same folders: a second start finds the runs of the first.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.settings.merge import Assignment, Settings, assignments_of

SECTION = "sweep"
MAX_RUNS = 1000
MAX_NAME = 100  # characters of a folder's name, without the digest
UNSAFE = re.compile(r"[^\w.+=,-]+", re.ASCII)
OF_ALL_RUNS = (SECTION, "out", "name")  # keys that differ by themselves


@dataclass(frozen=True)
class Combination:
    """Settings of a run, and the name of its folder."""

    name: str
    settings: tuple[Assignment, ...]


def combinations_of(section: Any, places: Mapping[str, str]) -> list[Combination]:
    """The combinations in order.

    Raises:
        ConfigError: the section has another form; under the place of its key.
    """
    written = Settings(places=dict(places))
    if isinstance(section, Mapping):
        rows = _product(section, written)
    elif isinstance(section, list) and all(isinstance(row, Mapping) for row in section):
        rows = [_assignments(row, f"{SECTION}.{i}", written) for i, row in enumerate(section)]
    else:
        raise ConfigError(
            f"{written.place(SECTION)} should be {{key: [values]}}, or a list of {{key: value}}"
        )
    if not rows or not all(rows) or len(rows) > MAX_RUNS:
        raise ConfigError(
            f"{written.place(SECTION)} has {len(rows)} combinations: write 1 to {MAX_RUNS} of at"
            " least a setting each"
        )
    labels = _labels([assignment.key for row in rows for assignment in row])
    combinations = [Combination(folder_name(row, labels), tuple(row)) for row in rows]
    for name, count in Counter(entry.name for entry in combinations).items():
        if count > 1:
            raise ConfigError(
                f"{written.place(SECTION)} has the combination {name} {count} times"
            )
    return combinations


def _product(section: Mapping[str, Any], written: Settings) -> list[Sequence[Assignment]]:
    axes = []
    for axis in _assignments(section, SECTION, written):
        if not isinstance(axis.value, list) or not axis.value:
            raise ConfigError(f"{axis.place} should be a list of values, not {axis.value!r}")
        axes.append([Assignment(axis.key, value, axis.place) for value in axis.value])
    return [*product(*axes)]


def _assignments(tree: Mapping[str, Any], above: str, written: Settings) -> list[Assignment]:
    """The settings by names with dots, each under its place in the file."""
    found = []
    for entry in assignments_of(Settings(dict(tree))):
        place = written.place(f"{above}.{entry.key}")
        if entry.key.partition(".")[0] in OF_ALL_RUNS:
            raise ConfigError(f"{place}: each run has {entry.key} of its own: take it out")
        found.append(Assignment(entry.key, entry.value, place))
    return found


def folder_name(settings: Sequence[Assignment], labels: Mapping[str, str]) -> str:
    """The name of a folder: ``lr=1e-05,seed=0``; with a digest where characters were replaced."""
    whole = ",".join(f"{labels[entry.key]}={_text(entry.value)}" for entry in settings)
    safe = UNSAFE.sub("-", whole)[:MAX_NAME]
    if safe == whole:
        return safe
    exact = json.dumps([(entry.key, entry.value) for entry in settings], default=str)
    return f"{safe}~{hashlib.sha256(exact.encode()).hexdigest()[:6]}"


def _labels(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or the whole key where several end alike."""
    distinct = dict.fromkeys(keys)
    ends = Counter(key.rpartition(".")[2] for key in distinct)
    last = {key: key.rpartition(".")[2] for key in distinct}
    return {key: end if ends[end] == 1 else key for key, end in last.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), default=str)


def setting_texts(combination: Combination) -> Iterator[str]:
    """The settings as words of a command line."""
    for entry in combination.settings:
        yield f"{entry.key}={_text(entry.value)}"
