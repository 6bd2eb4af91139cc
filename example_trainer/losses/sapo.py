"""SAPO, arXiv 2511.20347: a smooth gate instead of the clip.

    r = exp(log p - log p_proximal)
    w = sg[exp(log p_proximal - log p_behaviour)]       see losses.importance
    L = -sum m w (4 / tau) sigmoid(tau (r - 1)) A                       m: weight of a token
    tau = sapo_tau_positive where A > 0, else sapo_tau_negative

At r = 1 the gradient is -m w A grad log p, as without a gate. It fades to both sides, faster
for the larger tau: 1.05 for A <= 0, whose gradient spreads over all other tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from example_trainer.losses.importance import trust_region
from example_trainer.losses.tokens import LossInputs, bound_log_ratio, ratio_metrics
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the gated objective, negated, and token sums of its metrics."""
    tokens, region = batch.tokens, trust_region(batch, settings)
    log_ratio = bound_log_ratio(region.log_ratio)
    advantages = tokens.only(batch.advantages)
    up, down = settings.sapo_tau_positive, settings.sapo_tau_negative
    tau = torch.where(advantages > 0, up, torch.full_like(log_ratio, down))
    gate = 4 / tau * torch.sigmoid(tau * (log_ratio.exp() - 1))
    metrics = {**ratio_metrics(tokens, log_ratio), **region.metrics}
    return tokens.loss_sum(-region.weight * gate * advantages), metrics
