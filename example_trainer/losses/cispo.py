"""CISPO, arXiv 2506.13585, eq. 4: the weight of a token is clipped, its gradient never.

    r = exp(log p - log p_proximal)
    w = exp(log p_proximal - log p_behaviour)        see losses.importance
    L = -sum m sg[w min(r, 1 + eps_high)] A log p    m: weight of a token, sg: no gradient

A clip of the objective, as in ppo, takes the gradient from the rare tokens that moved most,
like "wait" or "however"; here they keep it, with a bounded weight. There is no lower
bound, as in the paper's experiments. eps_high is ``clip_eps_high``, else ``clip_eps``, else
4: the bound 5 of arXiv 2510.13786 (ScaleRL), which found 4 to 8 alike; TRL's setting is the
bound.
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.clip import Eps
from example_trainer.losses.importance import trust_region
from example_trainer.losses.tokens import LossInputs, bound_log_ratio, ratio_metrics
from example_trainer.settings.loss import LossSettings

WEIGHT_EPS = Eps(1.0, 4.0)  # only the upper bound is used


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the weighted policy gradient, and token sums of its metrics.

    ``importance_weight`` is the weight as applied, ``importance_capped_ratio`` the tokens cut by
    either bound.
    """
    tokens, region = batch.tokens, trust_region(batch, settings)
    log_ratio = bound_log_ratio(region.log_ratio)
    ratio = log_ratio.detach().exp()
    most = 1 + WEIGHT_EPS.of(settings).high
    weight = region.weight * ratio.clamp(max=most)
    cut = tokens.total(ratio > most)
    advantages, logprobs = tokens.only(batch.advantages), tokens.only(batch.logprobs)
    return tokens.loss_sum(-weight * advantages * logprobs), {
        **region.metrics,
        "importance_weight": tokens.total(weight),
        "importance_capped_ratio": region.metrics.get("importance_capped_ratio", 0) + cut,
        **ratio_metrics(tokens, log_ratio),
    }
