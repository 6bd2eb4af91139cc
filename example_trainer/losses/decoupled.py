"""The clipped policy gradient of PPO and GRPO, decoupled from the age of the sampler.

The clip is eq. 7 of arXiv 1707.06347 (PPO), per token as in arXiv 2402.03300 (GRPO); the weight
is that of AReaL, arXiv 2505.24298 eq. 5, after arXiv 2110.00641.

    r = exp(log p - log p_proximal)                     how far this batch moved the policy
    w = sg[exp(log p_proximal - log p_behaviour)]       how old the sampler was
    L = -sum m w min(r A, clip(r, 1 - eps, 1 + eps_high) A)             m: weight of a token

The clip bounds the step from the proximal policy; w corrects for the sampler, without a
gradient. By default w is truncated to importance_cap, see losses.importance. On the first
step on a batch r = 1, and the gradient is -m w A grad log p for any eps. importance_weight
``none`` is PPO as written, for samples of the proximal policy. ratio_to ``sampler`` takes
r to the behaviour policy, as the original trainer: then stale tokens are clipped for their age.
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.clip import TOKEN_EPS, clip
from example_trainer.losses.importance import trust_region
from example_trainer.losses.tokens import LossInputs, bound_log_ratio, ratio_metrics
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the weighted clipped objective, negated, and its metrics."""
    tokens, region = batch.tokens, trust_region(batch, settings)
    log_ratio = bound_log_ratio(region.log_ratio)
    eps = TOKEN_EPS.of(settings)
    clipped = clip(log_ratio.exp(), tokens.only(batch.advantages), eps, settings.dual_clip)
    batch.clipped.append(clipped.by_clip | clipped.by_dual)
    return tokens.loss_sum(region.weight * clipped.loss), {
        "clip_ratio": tokens.total(clipped.by_clip),
        "dual_clip_ratio": tokens.total(clipped.by_dual),
        **ratio_metrics(tokens, log_ratio),
        **region.metrics,
    }
