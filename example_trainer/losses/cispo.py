"""CISPO, arXiv 2506.13585, eq. 4: the weight of a token is clipped, its gradient never.

    r = exp(log p - log p_behaviour)
    L = -sum m sg[min(r, 1 + eps_high)] A log p      m: weight of a token, sg: no gradient

A clip of the objective, as in ppo, takes the gradient from the rare tokens that moved most,
such as "wait" or "however"; here they keep it, with a bounded weight. There is no lower
bound, as in the paper's experiments. eps_high is ``clip_eps_high``, else ``clip_eps``.
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.tokens import LossInputs, bounded, ratio_metrics
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the weighted policy gradient, and token sums of its metrics.

    ``importance_weight`` is the weight as applied, ``importance_capped_ratio`` the tokens cut.
    """
    tokens = batch.tokens
    log_ratio = bounded(batch.log_ratio(batch.behaviour_logprobs))
    ratio = log_ratio.detach().exp()
    high = settings.clip_eps if settings.clip_eps_high is None else settings.clip_eps_high
    weight = ratio.clamp(max=1 + high)
    advantages, logprobs = tokens.only(batch.advantages), tokens.only(batch.logprobs)
    return tokens.loss_sum(-weight * advantages * logprobs), {
        "importance_weight": tokens.total(weight),
        "importance_capped_ratio": tokens.total(ratio > 1 + high),
        **ratio_metrics(tokens, log_ratio),
    }
