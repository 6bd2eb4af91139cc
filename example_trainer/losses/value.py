"""The loss of a critic, clipped squared error. As in PPO's reference implementation, a value
moves at most critic_clip_eps toward its return per batch.

    L = 1/2 sum m max((v - R)^2, (v_old + clip(v - v_old, -eps, eps) - R)^2)

``max`` keeps the gradient while the value is on the wrong side, and removes it where the
value moved more than eps toward R.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from example_trainer.losses.tokens import Tokens
from example_trainer.settings.advantage import AdvantageSettings
from example_trainer.settings.partial import complete

if TYPE_CHECKING:
    from torch import Tensor


def value_loss(
    values: Tensor,  # (B, T) of the critic being trained
    old_values: Tensor,  # (B, T) of the critic before the first step on this batch
    returns: Tensor,  # (B, T) of gae.token_advantages
    mask: Tensor,  # (B, T) weight of each token; 0 where not trained
    cfg: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the clipped squared error, and token sums of its metrics.

    ``value_mean``, ``return_mean``, ``value_error`` (squared, not clipped), and
    ``value_clip_ratio``, tokens whose gradient the clip removed.
    """
    eps = complete(cfg, AdvantageSettings).critic_clip_eps
    tokens = Tokens.of(mask)
    values, old = tokens.only(values), tokens.only(old_values.detach())
    returns = tokens.only(returns.detach())
    near = old + (values - old).clamp(-eps, eps)
    error, near_error = (values - returns) ** 2, (near - returns) ** 2
    return tokens.loss_sum(torch.maximum(error, near_error) / 2), {
        "value_mean": tokens.total(values),
        "return_mean": tokens.total(returns),
        "value_error": tokens.total(error),
        "value_clip_ratio": tokens.total(near_error > error),
    }
