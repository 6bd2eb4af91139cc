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

from example_trainer.losses.clip import clipped_loss
from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the clipped objective, negated, and token sums of its metrics."""
    losses, metrics = clipped_loss(batch, batch.behaviour_logprobs, settings)
    return batch.tokens.loss_sum(losses), metrics
