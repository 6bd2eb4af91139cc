"""GSPO, arXiv 2507.18071 eq. 5-7: a ratio per sequence, the geometric mean of its tokens'.

    s = exp(mean over the row's trained tokens of (log p - log p_proximal))
    w = sg[exp(log p_proximal - log p_behaviour)]       see losses.importance
    L = -sum over tokens m w min(s A, clip(s, 1 - eps, 1 + eps_high) A) m: weight of a token

A is the row's advantage; where its tokens have different advantages, their mean. The paper
averages over sequences, which is loss_aggregation ``sequence``: the weights of a row then
add up to 1. With ``token`` long sequences count more.

s moves far less than the ratio of a token, so that clip_eps is 3e-4 and clip_eps_high 4e-4 by
default, as in the paper (section 5.1).
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.clip import Eps, clip
from example_trainer.losses.importance import trust_region
from example_trainer.losses.tokens import LossInputs, bound_log_ratio, ratio_metrics
from example_trainer.settings.loss import LossSettings

SEQUENCE_EPS = Eps(3e-4, 4e-4)


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of their sequence's clipped objective, negated, and its metrics.

    ``ratio_mean`` is of s, every token counting; ``approx_kl`` is of single tokens, as in
    all losses.
    """
    tokens, region = batch.tokens, trust_region(batch, settings)
    log_ratio = region.log_ratio
    ratio = bound_log_ratio(tokens.row_mean(log_ratio)).exp().expand_as(log_ratio)
    # (B, 1) advantages become (B, T) by the where in ``only``.
    mean_advantage = tokens.row_mean(tokens.only(batch.advantages)).expand_as(log_ratio)
    clipped = clip(ratio, mean_advantage, SEQUENCE_EPS.of(settings))
    batch.clipped.append(clipped.by_clip)
    metrics = {
        "clip_ratio": tokens.total(clipped.by_clip),
        **ratio_metrics(tokens, bound_log_ratio(log_ratio)),
        "ratio_mean": tokens.total(ratio),
        **region.metrics,
    }
    return tokens.loss_sum(region.weight * clipped.loss), metrics
