"""The centre of a trust region, and the importance weight: proximal policy / behaviour policy.

A trust region limits how far a step moves the policy, so that its centre is the policy before
the step, computed by the trainer: an engine computes the same weights differently, in
bfloat16 by 0.01 to 0.06 nats per token, which a narrow region (GSPO's is 3e-4) would take for a
step. The weight corrects for that difference, and for staleness, per token or sequence.

    w = sg[exp(log p_proximal - log p_behaviour)]           sg: without a gradient

    importance_level   token     a weight per token
                       sequence  exp of the mean log w of the row: a single weight
                       product   exp of the sum of log w of the row: one weight, unbiased; with
                                 ``mask`` and cap 3 the default of TRL
    importance_weight  truncate  w <- min(max(w, floor), cap)
                       mask      w <- 0 where w < floor or w > cap
                       none      w <- 1

A masked token shrinks the gradient; what is left is not scaled up, since the divisor
counts trained tokens, not kept tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from example_trainer.losses.tokens import LossInputs, bound_log_ratio, kl_estimate
from example_trainer.settings.loss import LossSettings


@dataclass(frozen=True)
class TrustRegion:
    """How far the policy is from the centre, and what corrects for the sampler."""

    log_ratio: Tensor  # (B, T) log p - log p_centre, not bounded, with the gradient
    weight: Tensor  # (B, T) without a gradient
    metrics: dict[str, Tensor]  # metrics of the weight


def trust_region(batch: LossInputs, settings: LossSettings) -> TrustRegion:
    """The trust region of ``ratio_to``.

    trainer: the centre is the proximal policy, and the sampler is corrected for by the weight.
    sampler: the centre is the behaviour policy, and nothing is corrected for.
    """
    if settings.ratio_to == "sampler":
        log_ratio = batch.log_ratio(batch.behaviour_logprobs)
        return TrustRegion(log_ratio, torch.ones_like(log_ratio), {})
    weight, metrics = importance(batch, settings)
    return TrustRegion(batch.log_ratio(batch.proximal_logprobs), weight, metrics)


@torch.no_grad()
def importance(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """(B, T) weights without a gradient, and token sums of their metrics."""
    tokens = batch.tokens
    log_w = tokens.only(batch.proximal_logprobs) - tokens.only(batch.behaviour_logprobs)
    drift = kl_estimate(bound_log_ratio(log_w))
    if settings.importance_level == "sequence":
        log_w = tokens.row_mean(log_w).expand_as(log_w)
    elif settings.importance_level == "product":
        log_w = log_w.sum(-1, keepdim=True).expand_as(log_w)
    weight = bound_log_ratio(log_w).exp()
    # A NaN counts as within the bounds: masking would hide it.
    beyond = (weight > settings.importance_cap) | (weight < settings.importance_floor)
    capped = masked = torch.zeros_like(beyond)
    if settings.importance_weight == "none":
        weight = torch.ones_like(weight)
    elif settings.importance_weight == "mask":
        weight, masked = torch.where(beyond, 0.0, weight), beyond
    else:
        weight = weight.clamp(settings.importance_floor, settings.importance_cap)
        capped = beyond
    return weight, {
        "importance_weight": tokens.total(weight),
        "importance_kl": tokens.total(drift),
        "importance_capped_ratio": tokens.total(capped),
        "filtered_ratio": tokens.total(masked),
    }
