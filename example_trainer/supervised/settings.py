"""Settings and command lines of atropos-sft, atropos-dpo and atropos-rm, without torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from atroposlib.errors import ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import CommandParser
from example_trainer.settings.args import (
    VARIABLES,
    add_flag,
    flag,
    flag_hint,
    problems_of,
)
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.corpus import CorpusSettings, DpoSettings, SftSettings
from example_trainer.settings.files import load_yaml
from example_trainer.settings.model import ModelSettings
from example_trainer.settings.optim import OptimSettings
from example_trainer.settings.run import WatchSettings
from example_trainer.settings.section import RENAMED


class FileTraining(WatchSettings, OptimSettings, CorpusSettings, ModelSettings):
    """Settings shared by all training on files."""

    prog: ClassVar[str] = "training on files"
    about: ClassVar[str] = ""
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def shared(self, steps: int = 1) -> TrainingConfig:
        """Return the settings for the parts shared with atropos-grpo.

        Raises:
            ConfigError: settings contradict each other.
        """
        from example_trainer.model.loading import resolve_device  # loads torch

        # An omitted setting has the default of atropos-grpo, such as loss.
        known = set(TrainingConfig.model_fields)
        given = self.model_dump(include=known, exclude_none=True)
        own = {"training_steps": steps, "device": resolve_device(self.device)}
        return TrainingConfig(**{**given, **own})


class SftConfig(SftSettings, FileTraining):
    """Settings of atropos-sft."""

    prog = "atropos-sft"
    about = "Train a model on text, by plain cross entropy."


class DpoConfig(DpoSettings, FileTraining):
    """Settings of atropos-dpo."""

    prog = "atropos-dpo"
    about = "Train a model to prefer the better of two answers, by DPO or IPO."


class RewardConfig(FileTraining):
    """Settings of atropos-rm."""

    prog = "atropos-rm"
    about = "Train a reward model on pairs of answers."


C = TypeVar("C", bound=FileTraining)


def parse(model: type[C], argv: Sequence[str] | None = None) -> C:
    """Parse the command line and configure the logs; exits with status 2 on an error."""
    parser = build_parser(model)
    given = vars(parser.parse_args(argv))
    logs.configure(model.prog, given.pop("log_format"), given.pop("log_level"))
    try:
        return model(**settings_of(model, given))
    except ConfigError as error:
        parser.error(str(error))
    except ValidationError as error:
        parser.error(problems_of(error, places_of(given)))


def settings_of(model: type[BaseModel], given: dict[str, Any]) -> dict[str, Any]:
    """Combine settings of files and flags; flags take precedence.

    Raises:
        ConfigError: a file cannot be read, or has a key that is no setting.
    """
    flags = dict(given)
    values: dict[str, Any] = {}
    for path in flags.pop("config", ()):
        settings = load_yaml(path)
        known = model.model_fields.keys() | RENAMED.keys()
        if unknown := sorted(settings.keys() - known):
            raise ConfigError(f"{path}: {', '.join(unknown)}: no such setting")
        values |= settings
    return values | flags


def places_of(given: dict[str, Any]) -> dict[str, str]:
    """The file of each setting that no flag replaces, for messages."""
    files = given.get("config", ())
    return {
        key: f"{key} ({path})" for path in files for key in load_yaml(path) if key not in given
    }


def build_parser(model: type[FileTraining]) -> CommandParser:
    """Build a parser with a flag per field, by section; only given flags are passed, as text,
    for pydantic.
    """
    parser = CommandParser(
        prog=model.prog,
        description=model.about,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        usage=f"{model.prog} [--config FILE ...] [--flag VALUE ...]",
        epilog="How to use it: docs/other-training.md",
        variables=VARIABLES,
        hint=lambda word: flag_hint(word, model.model_fields),
    )
    parser.add_argument("--config", action="append", metavar="FILE", help="settings as YAML")
    left = dict(model.model_fields)
    for section in reversed(model.__mro__):
        own = [name for name in vars(section).get("__annotations__", {}) if name in left]
        group = parser.add_argument_group(title_of(section)) if own else parser
        for name in own:
            add_flag(group, name, left.pop(name))
    for old, new in RENAMED.items():
        if new in model.model_fields:
            parser.add_argument(flag(old), help=argparse.SUPPRESS)
    return parser


def title_of(section: type) -> str:
    """The heading of a section's flags: ``CorpusSettings`` is corpus."""
    return section.__name__.removesuffix("Settings").lower()
