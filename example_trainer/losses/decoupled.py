"""Decoupled PPO, for batches that older policies sampled.

From AReaL, arXiv 2505.24298 eq. 5, after arXiv 2110.00641.

    r = exp(log p - log p_proximal)                     how far this batch moved the policy
    w = sg[exp(log p_proximal - log p_behaviour)]       how old the sampler was
    L = -sum m w min(r A, clip(r, 1 - eps, 1 + eps_high) A)             m: weight of a token

The clip bounds the step from the proximal policy; w corrects for the sampler, without a
gradient. By default w is truncated to importance_cap, see losses.importance. On the first
step on a batch r = 1, and the gradient is -m w A grad log p for any eps.
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.clip import clipped_loss
from example_trainer.losses.importance import importance
from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the weighted clipped objective, negated, and its metrics."""
    losses, metrics = clipped_loss(batch, batch.proximal_logprobs, settings)
    weight, weighed = importance(batch, settings)
    return batch.tokens.loss_sum(weight * losses), {**metrics, **weighed}
