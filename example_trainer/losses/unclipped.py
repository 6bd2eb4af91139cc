"""Losses without a clip: reinforce, cispo, sapo. A weight or a gate bounds the step instead.

Each is a sum over tokens, each token times its weight m. sg stops the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from example_trainer.losses.importance import importance
from example_trainer.losses.tokens import LossInputs, bounded, ratio_metrics
from example_trainer.settings.loss import LossSettings


def reinforce(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """REINFORCE (Williams 1992), with an importance weight for older samplers.

    w = sg[exp(log p_proximal - log p_behaviour)], bounded as in losses.importance
    L = -w A log p

    ``importance_weight none`` is the plain estimator, right for fresh samples only. Without a
    clip further steps on the same batch may move too far, so take one step per batch.
    """
    weight, metrics = importance(batch, settings)
    return _weighted(batch, weight), metrics


def cispo(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """CISPO, arXiv 2506.13585, eq. 4: the weight of a token is clipped, its gradient never.

    r = exp(log p - log p_behaviour)
    L = -sg[min(r, 1 + eps_high)] A log p

    A clip of the objective, as in ppo, takes the gradient from the rare tokens that moved most,
    such as "wait" or "however"; here they keep it, with a bounded weight. There is no lower
    bound, as in the paper's experiments. eps_high is ``clip_eps_high``, else ``clip_eps``.

    ``importance_weight`` is the weight as applied, ``importance_capped_ratio`` the tokens cut.
    """
    tokens = batch.tokens
    log_ratio = bounded(batch.log_ratio(batch.behaviour_logprobs))
    ratio = log_ratio.detach().exp()
    high = settings.clip_eps if settings.clip_eps_high is None else settings.clip_eps_high
    weight = ratio.clamp(max=1 + high)
    return _weighted(batch, weight), {
        "importance_weight": tokens.total(weight),
        "importance_capped_ratio": tokens.total(ratio > 1 + high),
        **ratio_metrics(tokens, log_ratio),
    }


def sapo(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """SAPO, arXiv 2511.20347: a smooth gate instead of the clip.

    r = exp(log p - log p_behaviour)
    L = -(4 / tau) sigmoid(tau (r - 1)) A
    tau = sapo_tau_positive where A > 0, else sapo_tau_negative

    At r = 1 the gradient is -A grad log p, as without a gate. It fades to both sides, faster
    for the larger tau: 1.05 for A <= 0, whose gradient spreads over all other tokens.
    """
    tokens = batch.tokens
    log_ratio = bounded(batch.log_ratio(batch.behaviour_logprobs))
    advantages = tokens.only(batch.advantages)
    up, down = settings.sapo_tau_positive, settings.sapo_tau_negative
    tau = torch.where(advantages > 0, up, torch.full_like(log_ratio, down))
    gate = 4 / tau * torch.sigmoid(tau * (log_ratio.exp() - 1))
    return tokens.loss_sum(-gate * advantages), ratio_metrics(tokens, log_ratio)


def _weighted(batch: LossInputs, weight: Tensor) -> Tensor:
    """Sum of -weight A log p."""
    tokens = batch.tokens
    advantages, logprobs = tokens.only(batch.advantages), tokens.only(batch.logprobs)
    return tokens.loss_sum(-weight * advantages * logprobs)
