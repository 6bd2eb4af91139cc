"""The clipped policy gradient of PPO as GRPO uses it, centred on the policy that sampled.

From arXiv 2402.03300; the clip is eq. 7 of arXiv 1707.06347.

    r = exp(log p - log p_behaviour)
    L = -sum m min(r A, clip(r, 1 - eps, 1 + eps_high) A)               m: weight of a token

The ratio carries two things at once: how far the policy moved on this batch, and how old
the sampler is. Tokens of an old sampler are clipped for its age; ``decoupled`` separates
the two. The proximal policy is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from example_trainer.losses.clip import clip
from example_trainer.losses.tokens import Tokens, bounded, ratio_metrics
from example_trainer.settings.loss import LossSettings
from example_trainer.settings.partial import complete

if TYPE_CHECKING:
    from torch import Tensor


def loss(
    logprobs: Tensor,  # (B, T)
    proximal_logprobs: Tensor,  # (B, T), not used
    behaviour_logprobs: Tensor,  # (B, T)
    advantages: Tensor,  # (B, T)
    loss_mask: Tensor,  # (B, T)
    cfg: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the clipped objective, negated, and token sums of its metrics."""
    settings, tokens = complete(cfg, LossSettings), Tokens.of(loss_mask)
    log_ratio = bounded(tokens.only(logprobs) - tokens.only(behaviour_logprobs.detach()))
    clipped = clip(log_ratio.exp(), tokens.only(advantages), settings, settings.dual_clip)
    metrics = {**clipped.metrics(tokens), **ratio_metrics(tokens, log_ratio)}
    return tokens.loss_sum(clipped.loss), metrics
