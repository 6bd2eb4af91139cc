"""PPO's clipped policy gradient, arXiv 1707.06347 eq. 7, centred on the proximal policy.

    r = exp(log p - log p_proximal)
    L = -sum m min(r A, clip(r, 1 - eps, 1 + eps_high) A)               m: weight of a token

The sampler's logprobs are not used: right when the sampler is the proximal policy, and a
bias when it is older or computes differently (``decoupled`` corrects it). On the first
step on a batch r = 1, and the gradient is -m A grad log p for any eps.
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.clip import clipped_loss
from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the clipped objective, negated, and token sums of its metrics."""
    losses, metrics = clipped_loss(batch, batch.proximal_logprobs, settings)
    return batch.tokens.loss_sum(losses), metrics
