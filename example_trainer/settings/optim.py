"""Optimizer, learning rate, clipping."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from example_trainer.settings.section import Section


class OptimSettings(Section):
    """Optimizer, learning rate, clipping."""

    optimizer: Literal["adamw", "adamw_8bit", "adafactor", "sgd"] = Field(
        "adamw_8bit", description="adamw_8bit needs bitsandbytes, else it is adamw"
    )
    optimizer_offload: bool = Field(
        False, description="keep the moments of adamw in main memory between steps (CUDA)"
    )
    lr: float = Field(1e-5, gt=0, description="learning rate after the warm-up")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="after the warm-up: stay, or fall to lr x min_lr_ratio"
    )
    min_lr_ratio: float = Field(
        0.0, ge=0, le=1, description="share of lr at the end of linear and cosine schedules"
    )
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    warmup_ratio: float = Field(
        0.0, ge=0, le=1, description="warm-up as a share of training_steps"
    )
    lr_decay_ratio: float = Field(
        0.0, ge=0, le=1, description="last share of the steps, in which lr falls linearly to 0"
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="decay of the second moment")
    adam_eps: float = Field(1e-8, gt=0, description="floor of the denominator of Adam")
    weight_decay: float = Field(0.01, ge=0, description="decoupled weight decay")
    max_grad_norm: float = Field(
        1.0, gt=0, description="clip the global gradient norm to this"
    )
    adafactor_scale_parameter: bool = Field(False, description="scale steps by weight size")
    adafactor_relative_step: bool = Field(False, description="Adafactor's own step size")
