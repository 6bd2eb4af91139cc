"""The importance weight: proximal policy / behaviour policy, per token or sequence.

It corrects for staleness, and for engines that compute the same model differently.

    w = sg[exp(log p_proximal - log p_behaviour)]           sg: without a gradient

    importance_level   token     a weight per token
                       sequence  exp of the mean log w of the row: one weight
    importance_weight  truncate  w <- min(max(w, floor), cap)
                       mask      w <- 0 where w < floor or w > cap
                       none      w <- 1

A masked token shrinks the gradient; what is left is not scaled up, since the divisor
counts trained tokens, not kept ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from example_trainer.losses.tokens import LossInputs, bounded, kl
from example_trainer.settings.loss import LossSettings


@torch.no_grad()
def importance(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """(B, T) weights without a gradient, and token sums of their metrics."""
    tokens = batch.tokens
    log_w = tokens.only(batch.proximal_logprobs) - tokens.only(batch.behaviour_logprobs)
    drift = kl(bounded(log_w))
    if settings.importance_level == "sequence":
        log_w = tokens.row_mean(log_w).expand_as(log_w)
    weight = bounded(log_w).exp()
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
