"""Settings of runs as flat names: what differs between them, and which differ in the seed only.

Pure. A path below the folder of the run reads ``{run}/...``, so that two runs with the same
settings are equal, and the value of a key or password is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.settings.merge import Settings, assignments_of

HIDDEN = "(hidden)"
NOT_SET = "not set"
_SECRET = re.compile(r"(^|[_-])(api_?key|secret|password|token)$", re.IGNORECASE)
_OWN_PORT = re.compile(r"(?<=//)(127\.0\.0\.1|localhost|\[::1\]):\d+")


@dataclass(frozen=True)
class RecordedSettings:
    """Values by names with dots, as text, and the place of each: ``launch/trainer.yaml:3``."""

    values: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""  # a file that could not be read


def recorded_settings(
    files: Mapping[str, Settings], folders: Sequence[Path], problem: str = ""
) -> RecordedSettings:
    """The settings of files by their stems; the stem is the first word of each name.

    Args:
        folders: paths of the run, now and when it was started.
    """
    values: dict[str, str] = {}
    places: dict[str, str] = {}
    for stem, settings in files.items():
        for entry in assignments_of(settings):
            name = f"{stem}.{entry.key}"
            values[name] = _shown_value(entry.key, entry.value, folders)
            places[name] = entry.place.rpartition(": ")[0].removeprefix(f"{folders[0]}/")
    return RecordedSettings(values, places, problem)


def _shown_value(key: str, value: Any, folders: Sequence[Path]) -> str:
    if isinstance(value, str) and _SECRET.search(key.rpartition(".")[2]):
        return HIDDEN
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    for folder in sorted(map(str, folders), key=len, reverse=True):
        text = re.sub(rf"{re.escape(folder)}(?=/|\"|$)", "{run}", text)
    return _OWN_PORT.sub(r"\1:*", text)


def is_seed(name: str) -> bool:
    return name.rpartition(".")[2] == "seed"


def differing_settings(runs: Sequence[RecordedSettings]) -> list[str]:
    """Names whose values differ between the runs, seeds last."""
    names = dict.fromkeys(name for run in runs for name in run.values)
    differing = [
        name for name in names if len({run.values.get(name, NOT_SET) for run in runs}) > 1
    ]
    return sorted(differing, key=is_seed)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """The last word of each name, or more words where two names end alike."""
    shortened = {}
    for name in names:
        words = name.split(".")
        n = 1
        while n < len(words) and any(
            rival != name and rival.split(".")[-n:] == words[-n:] for rival in names
        ):
            n += 1
        shortened[name] = ".".join(words[-n:])
    return shortened


def seed_groups(
    settings: Mapping[str, RecordedSettings], sources: Mapping[str, Mapping[str, Any]]
) -> list[list[str]]:
    """Runs, by their keys, that differ in the seed only; a run without settings is alone.

    Args:
        sources: of each run, the identity of its environments: other code is another group.
    """
    groups: dict[str, list[str]] = {}
    for key, run in settings.items():
        own = sorted((name, value) for name, value in run.values.items() if not is_seed(name))
        content = json.dumps([own, sources.get(key, {})], sort_keys=True)
        groups.setdefault(content if own else key, []).append(key)
    return list(groups.values())


def group_label(runs: Sequence[RecordedSettings], names: Mapping[str, str]) -> str:
    """The settings that set a group apart, ``lr 0.006``; empty without a difference.

    Args:
        names: short names of the settings that differ between all runs.
    """
    own = runs[0].values
    return ", ".join(
        f"{short} {own.get(name, NOT_SET)}"
        for name, short in (names if own else {}).items()
        if not is_seed(name) and len({run.values.get(name, NOT_SET) for run in runs}) == 1
    )
