"""Settings and command lines of atropos-sft, atropos-dpo and atropos-rm, without torch."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import chain
from typing import ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from atroposlib.errors import ConfigError
from atroposlib.settings.fields import validate_as
from atroposlib.settings.merge import Settings, assignments_of
from atroposlib.settings.sentences import no_setting
from atroposlib.settings.yaml_file import read_yaml
from atroposlib.utils.command import logs
from example_trainer.settings.algorithms import KEY
from example_trainer.settings.args import command_parser, with_set
from example_trainer.settings.batch import StepSettings
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.model import ModelSettings
from example_trainer.settings.optim import OptimSettings
from example_trainer.settings.run import WatchSettings
from example_trainer.settings.section import RENAMED


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
    parser = command_parser(
        model.prog,
        model,
        sections_of(model),
        usage=f"{model.prog} [--config FILE ...] [--flag VALUE ...] [key=value ...]",
        description=model.about,
        epilog="How to use it: docs/other-training.md",
    )
    args = parser.parse_args(with_set(sys.argv[1:] if argv is None else argv, model))
    logs.configure(model.prog, args.log_format, args.log_level)
    try:
        return validate_as(model, settings_of(model, args))
    except ConfigError as error:
        parser.error(str(error))


def sections_of(model: type[FileTraining]) -> dict[str, type[BaseModel]]:
    """The sections of a model: CorpusSettings is corpus, DpoConfig is dpo."""
    return {
        re.sub("(Settings|Config)$", "", section.__name__).lower(): section
        for section in reversed(model.__mro__)
        if issubclass(section, BaseModel) and vars(section).get("__annotations__")
    }


def settings_of(model: type[FileTraining], args: argparse.Namespace) -> Settings:
    """The settings of files, then of flags and overrides in their order; the last counts."""
    sections, known = sections_of(model), model.model_fields.keys() | RENAMED.keys()
    files = [assignments_of(read_yaml(path)) for path in vars(args).get("config", ())]
    collected = Settings()
    for assignment in (*chain(*files), *vars(args).get("assignments", ())):
        section, _, name = assignment.key.rpartition(".")
        if KEY in assignment.key.split("."):
            raise ConfigError(
                f"{assignment.place}: {model.prog} has one loss for all lines; {KEY} are those of"
                " environments, for atropos-grpo"
            )
        if name not in known or section not in ("", *sections):
            raise ConfigError(no_setting(assignment.place, assignment.key, known))
        collected.values[name] = assignment.value
        collected.places[name] = assignment.place
    return collected
