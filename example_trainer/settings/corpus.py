"""Settings of training on files; those of the names of other sections mean the same."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from example_trainer.settings.batch import StepSettings
from example_trainer.settings.section import Section


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


class SftSettings(Section):
    end_completions: bool = Field(
        False, description="add the end token to completions that lack it"
    )


class DpoSettings(Section):
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
