"""Settings of the trainer that a launcher wrote into the folder of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atroposlib.errors import ConfigError
from atroposlib.settings.yaml_file import read_yaml
from atroposlib.utils.command.run_folder import DATA_FOLDERS
from example_trainer.settings.loss import AdvantageSettings

FILES = ("launch/wiring.yaml", "launch/trainer.yaml")  # later files override earlier


def run_folder(path: Path) -> Path:
    """The folder of a run, of its folder or its data directory."""
    return path.parent if path.name in DATA_FOLDERS else path


def trainer_files(path: Path) -> list[Path]:
    """Files of settings of the trainer, the first overridden by later ones; [] if none exist."""
    return [file for name in FILES if (file := run_folder(path) / name).is_file()]


def recorded_trainer_settings(files: Sequence[Path]) -> dict[str, Any]:
    """Settings of all files together. Raises ConfigError: a file cannot be read."""
    settings: dict[str, Any] = {}
    for file in files:
        settings.update(read_yaml(file).values)
    return settings


def advantage_settings(files: Sequence[Path]) -> AdvantageSettings:
    """The settings of the advantage in files; plain GRPO without files.

    Raises ConfigError: a file cannot be read, or a value is invalid.
    """
    settings = recorded_trainer_settings(files)
    known = {
        name: value
        for name, value in settings.items()
        if name in AdvantageSettings.model_fields
    }
    try:
        return AdvantageSettings(**known)
    except ValidationError as error:
        places = ", ".join(map(str, files))
        raise ConfigError(f"{places}: settings of the advantage: {error}") from error
