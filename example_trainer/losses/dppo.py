"""DPPO with the binary total variation, arXiv 2602.04879 eq. 11-13, and a squared log ratio.

    r = exp(log p - log p_behaviour)
    D = p - p_behaviour                                 of the sampled token, in probability
    keep = not (A > 0 and D > dppo_delta) and not (A < 0 and D < -dppo_delta)
    L = sum m (-keep r A + dppo_tau (log r)^2)          m: weight of a token

By ratio a rare token that hardly moved is far, and a likely token that took a tenth of all
probability is near; the difference of probabilities bounds what the policy as a whole moved
by. The region is around the sampler, as in the paper (section 5.1): a difference of engines
counts too. The second term, of Kimi K2.5 (arXiv 2602.02276), draws all tokens back, left out
or not. ``dppo_delta`` and ``dppo_tau`` are prime-rl's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from example_trainer.losses.tokens import LossInputs, bound_log_ratio, ratio_metrics
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the masked objective, negated, plus the penalty; and its metrics."""
    tokens, delta = batch.tokens, settings.dppo_delta
    log_ratio = bound_log_ratio(batch.log_ratio(batch.behaviour_logprobs))
    advantages = tokens.only(batch.advantages)
    with torch.no_grad():
        now, then = (
            tokens.only(batch.logprobs).exp(),
            tokens.only(batch.behaviour_logprobs).exp(),
        )
        moved = now - then
        left_out = ((advantages > 0) & (moved > delta)) | ((advantages < 0) & (moved < -delta))
    batch.clipped.append(left_out)
    objective = torch.where(left_out, 0.0, log_ratio.exp() * advantages)
    penalty = settings.dppo_tau * log_ratio**2
    return tokens.loss_sum(penalty - objective), {
        "clip_ratio": tokens.total(left_out),
        **ratio_metrics(tokens, log_ratio),
    }
