"""Plug-ins that the trainer's settings name: checked before the start, recorded by their digest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from atroposlib.trackers import TRACKERS
from atroposlib.utils.command.plugins import (
    ESTIMATOR,
    FILTER,
    LOSS,
    PUBLISHER,
    SHAPING,
    TRACKER,
    Kind,
    record_of,
    target_of,
)
from atroposlib.utils.io import write_whole
from example_trainer.settings.algorithms import algorithms_of
from example_trainer.settings.loss import Estimator, LossName, ObjectiveSettings
from example_trainer.settings.weights import PublisherName

FILE = "plugins.json"  # a file in log_dir
# Setting -> its kind of plug-in, and the built-in names.
SETTINGS: dict[str, tuple[Kind, Sequence[str]]] = {
    "loss": (LOSS, get_args(LossName)),
    "advantage": (ESTIMATOR, get_args(Estimator)),
    "reward_shaping": (SHAPING, ()),
    "group_filter": (FILTER, ()),
    "weight_publisher": (PUBLISHER, get_args(PublisherName)),
    "trackers": (TRACKER, [*TRACKERS]),
}


def named_plugins(settings: Any) -> list[tuple[Kind, str]]:
    """Kind and name of each plug-in of the settings, without an import.

    Raises ConfigError: a name is unknown.
    """
    named = []
    for setting, (kind, builtins) in SETTINGS.items():
        value = getattr(settings, setting)
        names = list(value) if isinstance(value, list) else [value]
        if setting in ObjectiveSettings.model_fields:
            names += [getattr(own, setting) for own in algorithms_of(settings).values()]
        for name in dict.fromkeys(names):
            if name is not None and target_of(kind, name, builtins) is not None:
                named.append((kind, name))
    return named


def require_plugins(settings: Any) -> None:
    """Import every plug-in of the settings. Raises ConfigError: one cannot be used."""
    for kind, name in named_plugins(settings):
        record_of(kind, name)


def record_plugins(settings: Any, folder: Path) -> None:
    """Write the plug-ins of the settings with their digests; without plug-ins there is no file."""
    described = [asdict(record_of(kind, name)) for kind, name in named_plugins(settings)]
    path = folder / FILE
    if described:
        write_whole(path, json.dumps(described, indent=2) + "\n")
    else:
        path.unlink(missing_ok=True)
