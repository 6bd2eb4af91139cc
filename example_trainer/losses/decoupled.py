"""Decoupled PPO, for batches that older policies sampled.

From AReaL, arXiv 2505.24298 eq. 5, after arXiv 2110.00641.

    r = exp(log p - log p_proximal)                     how far this batch moved the policy
    w = sg[exp(log p_proximal - log p_behaviour)]       how old the sampler was
    L = -sum m w min(r A, clip(r, 1 - eps, 1 + eps_high) A)             m: weight of a token

The clip bounds a step from where it starts; w corrects, without a gradient, for who
sampled. losses.importance says how w is bounded: truncated to importance_cap by default.
On the first step on a batch r = 1, and the gradient is -m w A grad log p whatever eps is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from example_trainer.losses.clip import clip
from example_trainer.losses.importance import importance
from example_trainer.losses.tokens import Tokens, bounded, ratio_metrics
from example_trainer.settings.loss import LossSettings
from example_trainer.settings.partial import complete

if TYPE_CHECKING:
    from torch import Tensor


def loss(
    logprobs: Tensor,  # (B, T)
    proximal_logprobs: Tensor,  # (B, T)
    behaviour_logprobs: Tensor,  # (B, T)
    advantages: Tensor,  # (B, T)
    loss_mask: Tensor,  # (B, T)
    cfg: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the weighted clipped objective, negated, and its metrics."""
    settings, tokens = complete(cfg, LossSettings), Tokens.of(loss_mask)
    log_ratio = bounded(tokens.only(logprobs) - tokens.only(proximal_logprobs.detach()))
    weight, weighed = importance(proximal_logprobs, behaviour_logprobs, tokens, settings)
    clipped = clip(log_ratio.exp(), tokens.only(advantages), settings, settings.dual_clip)
    metrics = {**clipped.metrics(tokens), **ratio_metrics(tokens, log_ratio), **weighed}
    return tokens.loss_sum(weight * clipped.loss), metrics
