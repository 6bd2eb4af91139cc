"""The clipped policy gradient of PPO, arXiv 1707.06347 eq. 7, as GRPO uses it.

    r = exp(log p - log p_behaviour)
    L = -sum w * min(r A, clip(r, 1 - eps, 1 + eps_high) A)

``min`` holds for both signs of A. It removes the gradient where the policy already moved
far enough in the direction of A, and never where it moved the wrong way:

    A > 0: no gradient where r > 1 + eps_high       A < 0: none where r < 1 - eps
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from example_trainer.config import TrainingConfig

# exp(20) is still finite in every dtype; beyond it a ratio tells nothing but "far away".
MAX_LOG_RATIO = 20.0


def loss(
    logprobs: Tensor,  # (B, T) of the policy being trained
    proximal_logprobs: Tensor,  # (B, T) of the policy before this step; not used here
    behaviour_logprobs: Tensor,  # (B, T) of the policy that sampled
    advantages: Tensor,  # (B, T)
    loss_mask: Tensor,  # (B, T) weight of each token; 0 where not trained
    cfg: TrainingConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the clipped objective, negated, and token sums of its metrics."""
    high = cfg.clip_eps if cfg.clip_eps_high is None else cfg.clip_eps_high
    log_ratio = (logprobs - behaviour_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    log_ratio = torch.where(loss_mask > 0, log_ratio, 0.0)
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - cfg.clip_eps, 1 + high) * advantages
    loss_sum = -(loss_mask * torch.minimum(unclipped, clipped)).sum()
    with torch.no_grad():
        trained = loss_mask > 0
        metrics = {
            "clip_ratio": (trained & (clipped < unclipped)).sum(),
            "ratio_mean": ratio[trained].sum(),
            # KL(behaviour || policy), the estimator that is never negative.
            "approx_kl": (ratio - 1 - log_ratio)[trained].sum(),
        }
    return loss_sum, metrics
