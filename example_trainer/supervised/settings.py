"""Settings and command lines of atropos-sft, atropos-dpo and atropos-rm, without torch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field

from atroposlib.errors import ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import CommandParser
from example_trainer.settings.args import add_flag, command_parser, flag, validate_as
from example_trainer.settings.batch import StepSettings
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.files import GivenSettings
from example_trainer.settings.model import ModelSettings
from example_trainer.settings.optim import OptimSettings
from example_trainer.settings.run import WatchSettings
from example_trainer.settings.section import RENAMED
from example_trainer.settings.yaml_reader import load_yaml


class CorpusSettings(StepSettings):
    """Training on files of text: which, how often, in steps of how many lines."""

    train_file: str = Field(description="JSON lines to train on")
    valid_file: str | None = Field(None, description="JSON lines to measure the loss on")
    valid_every_steps: int | None = Field(
        None, ge=1, description="steps between validations (default: after each epoch)"
    )
    epochs: int = Field(1, ge=1, description="times the file is gone through")
    training_steps: int | None = Field(
        None, ge=1, description="end after so many steps (default: when the epochs are over)"
    )
    shuffle: bool = Field(
        True, description="another order of lines in each epoch, by the seed"
    )

    gradient_accumulation_steps: int = Field(
        8, ge=1, description="lines per step in units of batch_size"
    )

    save_path: str = Field("trained_model", description="final_model goes here")
    checkpoint_interval: int = Field(
        0, ge=0, description="steps between saved models; 0: only the final one"
    )
    keep_saved: int | None = Field(
        None, ge=1, description="saved models kept (default: all of them)"
    )

    @property
    def lines_per_step(self) -> int:
        return self.sequences_per_step


class FileTraining(WatchSettings, OptimSettings, CorpusSettings, ModelSettings):
    """Settings shared by all training on files."""

    prog: ClassVar[str] = "training on files"
    about: ClassVar[str] = ""
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def shared(self, steps: int = 1) -> TrainingConfig:
        """Return the settings for the parts shared with atropos-grpo."""
        from example_trainer.distributed.ranks import resolve_device  # loads torch

        # An omitted setting (for example, loss) has the default of atropos-grpo.
        known = set(TrainingConfig.model_fields)
        common = self.model_dump(include=known, exclude_none=True)
        own = {"training_steps": steps, "device": resolve_device(self.device)}
        return TrainingConfig(**{**common, **own})


class SftConfig(FileTraining):
    """Settings of atropos-sft."""

    prog = "atropos-sft"
    about = "Train a model on text, by plain cross entropy."

    end_completions: bool = Field(
        False, description="add the end token to completions that lack it"
    )


class DpoConfig(FileTraining):
    """Settings of atropos-dpo."""

    prog = "atropos-dpo"
    about = "Train a model to prefer the better of two answers, by DPO or IPO."

    lr: float = Field(1e-6, gt=0, description="learning rate after the warm-up")
    preference_loss: Literal["sigmoid", "ipo"] = Field(
        "sigmoid", description="DPO's logistic loss, or the squared one of IPO"
    )
    beta: float = Field(
        0.1, gt=0, description="how dearly the distance to the reference model is paid"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="share of pairs thought to be the wrong way round"
    )
    reference_model: str | None = Field(
        None, description="model the policy is compared with (default: the model at the start)"
    )


class RewardConfig(FileTraining):
    """Settings of atropos-rm."""

    prog = "atropos-rm"
    about = "Train a reward model on pairs of answers."


C = TypeVar("C", bound=FileTraining)


def parse(model: type[C], argv: Sequence[str] | None = None) -> C:
    """Parse the command line and configure the logs; exits with status 2 on an error."""
    parser = build_parser(model)
    flags = vars(parser.parse_args(argv))
    logs.configure(model.prog, flags.pop("log_format"), flags.pop("log_level"))
    try:
        return validate_as(model, settings_of(model, flags))
    except ConfigError as error:
        parser.error(str(error))


def settings_of(model: type[FileTraining], flags: dict[str, Any]) -> GivenSettings:
    """Combine settings of files and flags; flags take precedence."""
    collected = GivenSettings()
    for path in flags.pop("config", ()):
        settings = load_yaml(path)
        known = model.model_fields.keys() | RENAMED.keys()
        if unknown := sorted(settings.keys() - known):
            raise ConfigError(f"{path}: {', '.join(unknown)}: no such setting")
        collected.values |= settings
        collected.places |= {key: f"{key} ({path})" for key in settings.keys() - flags.keys()}
    collected.values |= flags
    return collected


def build_parser(model: type[FileTraining]) -> CommandParser:
    """Build a parser with a flag per field, by section."""
    parser = command_parser(
        model.prog,
        model.model_fields,
        usage=f"{model.prog} [--config FILE ...] [--flag VALUE ...]",
        description=model.about,
        epilog="How to use it: docs/other-training.md",
    )
    left = dict(model.model_fields)
    for section in reversed(model.__mro__):
        own = [name for name in vars(section).get("__annotations__", {}) if name in left]
        # CorpusSettings is corpus, DpoConfig is dpo.
        title = re.sub("(Settings|Config)$", "", section.__name__).lower()
        group = parser.add_argument_group(title) if own else parser
        for name in own:
            add_flag(group, name, left.pop(name))
    for old, new in RENAMED.items():
        if new in model.model_fields:
            parser.add_argument(flag(old), help=argparse.SUPPRESS)
    return parser
