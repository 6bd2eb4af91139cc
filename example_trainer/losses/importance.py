"""The importance weight: how much likelier a token is under the proximal policy than under
the one that sampled it. It corrects for staleness, and for engines that compute the same
model differently.

    w = sg[exp(log p_proximal - log p_behaviour)]           sg: without a gradient

    importance_level   token     a weight per token
                       sequence  exp of the mean log w of the row: one weight, one verdict
    importance_weight  truncate  w <- min(max(w, floor), cap)
                       mask      w <- 0 where w < floor or w > cap
                       none      w <- 1

A masked token shrinks the gradient; what is left is not scaled up, since the divisor
counts trained tokens, not kept ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from example_trainer.losses.tokens import Tokens, bounded, kl
from example_trainer.settings.loss import LossSettings

if TYPE_CHECKING:
    from torch import Tensor


@torch.no_grad()
def importance(
    proximal_logprobs: Tensor,  # (B, T)
    behaviour_logprobs: Tensor,  # (B, T)
    tokens: Tokens,
    cfg: LossSettings,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(B, T) weights without a gradient, and token sums of what they are made of."""
    log_w = tokens.only(proximal_logprobs) - tokens.only(behaviour_logprobs)
    drift = kl(bounded(log_w))
    if cfg.importance_level == "sequence":
        log_w = tokens.row_mean(log_w).expand_as(log_w)
    weight = bounded(log_w).exp()
    # Written so that a NaN is not beyond: masking would hide it.
    beyond = (weight > cfg.importance_cap) | (weight < cfg.importance_floor)
    none = torch.zeros_like(beyond)
    if cfg.importance_weight == "none":
        weight, beyond = torch.ones_like(weight), none
    elif cfg.importance_weight == "mask":
        weight = torch.where(beyond, 0.0, weight)
    else:
        weight = weight.clamp(cfg.importance_floor, cfg.importance_cap)
    masks = cfg.importance_weight == "mask"
    return weight, {
        "importance_weight": tokens.total(weight),
        "importance_kl": tokens.total(drift),
        "importance_capped_ratio": tokens.total(none if masks else beyond),
        "filtered_ratio": tokens.total(beyond if masks else none),
    }
