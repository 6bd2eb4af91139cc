"""Rewards -> advantages -> loss."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, field_validator

from atroposlib.utils.command import plugins
from example_trainer.settings.section import Section

LossName = Literal[
    "decoupled",
    "ppo",
    "grpo",
    "gspo",
    "sapo",
    "cispo",
    "m2po",
    "dppo",
    "reinforce",
    "cross_entropy",
    "distillation",
    "jsd",
    "reverse_kl",
]
CLIPPED = ("decoupled", "ppo", "grpo")  # losses with a dual clip
Estimator = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "lite_ppo",
    "maxrl",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "role",
    "gae",
    "raw",
]


class LossSettings(Section):
    """The policy loss and what is added to it. Formulae: example_trainer.losses."""

    loss: LossName | str = Field(
        "decoupled",
        description="name in example_trainer.losses, or MODULE:FUNCTION, FILE.py:FUNCTION",
    )
    ratio_to: Literal["trainer", "sampler"] = Field(
        "trainer",
        description="centre of the ratios: the trainer's own logprobs before the step, where the"
        " importance weight corrects for the sampler, or the sampler's logprobs, with no weight",
    )
    clip_eps: float = Field(
        0.2,
        ge=0,
        description="ratio may fall to 1 - clip_eps; of gspo 3e-4 unless it is named",
    )
    clip_eps_high: float | None = Field(
        None,
        ge=0,
        description="ratio may rise to 1 + clip_eps_high (default: clip_eps, else that of the"
        " loss: 0.2, gspo 4e-4, cispo 4)",
    )
    dual_clip: float | None = Field(
        None, gt=1, description="bound of the loss of a token with A < 0, in |A| (c_clip)"
    )
    importance_weight: Literal["truncate", "mask", "none"] = Field(
        "truncate",
        description="proximal / behaviour policy of each token: cut to the bounds, tokens beyond"
        " them left out, or not used at all",
    )
    importance_level: Literal["token", "sequence", "product"] = Field(
        "token",
        description="a weight per token, or for all tokens of a sequence their geometric mean or"
        " their product",
    )
    importance_cap: float = Field(
        5.0, gt=0, description="upper bound of the importance weight (behav_imp_weight_cap)"
    )
    importance_floor: float = Field(
        0.0, ge=0, description="lower bound of the importance weight"
    )
    sapo_tau_positive: float = Field(1.0, gt=0, description="SAPO temperature where A > 0")
    sapo_tau_negative: float = Field(1.05, gt=0, description="SAPO temperature where A <= 0")
    m2_threshold: float = Field(
        0.04, gt=0, description="M2PO: bound of the mean squared log importance weight"
    )
    dppo_delta: float = Field(
        0.2,
        ge=0,
        description="DPPO: how far the probability of a token may move in the direction of its"
        " advantage",
    )
    dppo_tau: float = Field(
        1e-3, ge=0, description="DPPO: weight of the squared log ratio to the sampler"
    )
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    kl_coef: float = Field(
        0.0, ge=0, description="weight of the KL to the reference model (kl_ctl)"
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="see losses.kl")
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="the KL is a term of the loss, or taken off each token's reward"
    )
    kl_bias_correction: bool = Field(
        False,
        description="the KL in the loss is multiplied by policy / sampler, so that its gradient"
        " is right on stale tokens too",
    )
    reference_model: str | None = Field(
        None, description="model the KL is measured to (default: the model at the start)"
    )
    distill_coef: float = Field(
        0.0,
        ge=0,
        description="weight of distill_loss on distill_*, added to the loss",
    )
    distill_loss: Literal["distillation", "jsd", "reverse_kl"] = Field(
        "distillation", description="the loss that distill_coef adds to another loss"
    )
    distill_temperature: float = Field(
        1.0, gt=0, description="both distributions are softened by it"
    )
    distill_rest: Literal["renormalize", "bucket"] = Field(
        "renormalize",
        description="the teacher's probability outside of its K tokens, in distillation and jsd:"
        " given to these tokens, or kept as one further outcome",
    )
    jsd_beta: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="weight of the teacher in the mixture of loss jsd: towards 0 forward KL,"
        " towards 1 reverse KL",
    )
    entropy_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the batch's trained tokens with the highest entropy that enter the"
        " loss; the others count in its divisor",
    )
    loss_aggregation: Literal["token", "sequence", "constant"] = Field(
        "token",
        description="each token of the batch, or each sequence, counts the same; constant:"
        " the sum over tokens / (sequences x aggregation_length) of Dr. GRPO",
    )
    aggregation_length: int | None = Field(
        None, ge=1, description="tokens, for loss_aggregation constant (default: seq_len)"
    )
    max_token_staleness: int | None = Field(
        None,
        ge=0,
        description="tokens sampled more versions ago are left out of the loss, their rows stay"
        " in the baseline (default: all tokens are trained)",
    )
    mask_truncated: bool = Field(
        False, description="rows cut off at the token limit count in the baseline only"
    )
    unknown_temperature: Literal["refuse", "warn", "assume_1"] = Field(
        "warn",
        description="rows that name no temperature, as older environments send them: end the run,"
        " assume 1 and warn once, or assume 1",
    )

    @field_validator("loss")
    @classmethod
    def _is_loss(cls, value: str) -> str:
        return plugins.valid_name(plugins.LOSS, value, get_args(LossName))


class AdvantageSettings(Section):
    """Rewards -> advantages."""

    advantage: Estimator | str = Field(
        "grpo",
        description="name in example_trainer.advantage.estimators, or MODULE:FUNCTION,"
        " FILE.py:FUNCTION",
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
    reward_shaping: str | None = Field(
        None,
        description="MODULE:FUNCTION or FILE.py:FUNCTION that changes the rewards of a batch first",
    )
    reward_bias: float = Field(0.0, description="added to each reward")
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
    group_filter: str | None = Field(
        None,
        description="MODULE:FUNCTION or FILE.py:FUNCTION; groups for which it returns false leave"
        " the loss",
    )
    role_decay: float = Field(
        0.95,
        ge=0,
        lt=1,
        description="share that a role's baseline keeps of its value per batch, for advantage role",
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

    @field_validator("advantage")
    @classmethod
    def _is_estimator(cls, value: str) -> str:
        return plugins.valid_name(plugins.ESTIMATOR, value, get_args(Estimator))

    @field_validator("reward_shaping")
    @classmethod
    def _is_shaping(cls, value: str | None) -> str | None:
        return None if value is None else plugins.valid_name(plugins.SHAPING, value)

    @field_validator("group_filter")
    @classmethod
    def _is_filter(cls, value: str | None) -> str | None:
        return None if value is None else plugins.valid_name(plugins.FILTER, value)


class ObjectiveSettings(AdvantageSettings, LossSettings):
    """Settings that turn rewards into a loss."""
