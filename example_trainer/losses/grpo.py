"""The clipped policy gradient of PPO as GRPO uses it, centred on the policy that sampled.

From arXiv 2402.03300; the clip is eq. 7 of arXiv 1707.06347.

    r = exp(log p - log p_behaviour)
    L = -sum m min(r A, clip(r, 1 - eps, 1 + eps_high) A)               m: weight of a token

The ratio mixes how far the policy moved on this batch with how old the sampler is, so
tokens of an old sampler are clipped for its age; ``decoupled`` separates the two. The
proximal policy is not used.
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.clip import clip
from example_trainer.losses.tokens import LossInputs, bounded, ratio_metrics
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the clipped objective, negated, and token sums of its metrics."""
    tokens = batch.tokens
    log_ratio = bounded(batch.log_ratio(batch.behaviour_logprobs))
    advantages = tokens.only(batch.advantages)
    clipped = clip(log_ratio.exp(), advantages, settings, settings.dual_clip)
    metrics = {**clipped.metrics(tokens), **ratio_metrics(tokens, log_ratio)}
    return tokens.loss_sum(clipped.loss), metrics
