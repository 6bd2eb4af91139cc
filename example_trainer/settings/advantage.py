"""Rewards -> advantages."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from example_trainer.settings.loss import LossSettings
from example_trainer.settings.section import Section

Estimator = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "lite_ppo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gae",
    "raw",
]


class AdvantageSettings(Section):
    """Rewards -> advantages."""

    advantage: Estimator = Field(
        "grpo", description="name in example_trainer.advantage.estimators"
    )
    advantage_norm: Literal["none", "batch", "group"] = Field(
        "none",
        description="batch, group: advantages of the batch, or of each group, to mean 0 and"
        " deviation 1, each trained token counting once (adv_norm); reinforce_pp always does it",
    )
    advantage_eps: float = Field(
        0.0,
        ge=0,
        description="added to the deviation that grpo and lite_ppo divide by (1e-4 in TRL, 1e-5 in"
        " AReaL), so that rewards that hardly differ have small advantages",
    )
    reward_bias: float = Field(0.0, description="added to each reward first")
    reward_scale: float = Field(1.0, description="then multiplied (reward_scaling)")
    reward_clip: float | None = Field(
        None, gt=0, description="then clipped to plus and minus this"
    )
    overlong_tokens: int = Field(
        0,
        ge=0,
        description="DAPO: the last so many tokens before max_new_tokens cost reward, rising"
        " linearly to overlong_penalty; 0: none",
    )
    overlong_penalty: float = Field(1.0, ge=0, description="reward lost at max_new_tokens")
    max_new_tokens: int | None = Field(
        None, ge=1, description="completion limit of the environments, for overlong_tokens"
    )
    dynamic_filter: bool = Field(
        False, description="DAPO: leave out groups whose rewards are all equal"
    )
    gamma: float = Field(1.0, ge=0, le=1, description="discount per trained token, for gae")
    gae_lambda: float = Field(1.0, ge=0, le=1, description="lambda of generalised advantages")
    critic: bool = Field(False, description="train a value model; needs advantage gae")
    critic_model: str | None = Field(
        None, description="where the value model starts (default: model_name)"
    )
    critic_lr: float = Field(1e-5, gt=0, description="learning rate of the value model")
    critic_clip_eps: float = Field(
        0.2, gt=0, description="a value moves at most so far from its old one per batch"
    )


class ObjectiveSettings(AdvantageSettings, LossSettings):
    """Settings that turn rewards into a loss."""
