"""The clip shared by ppo, grpo, decoupled and gspo, for a ratio r and an advantage A.

    clip        L = -min(r A, clip(r, 1 - eps, 1 + eps_high) A)     arXiv 1707.06347, eq. 7
    clip-higher eps_high > eps lets rare tokens rise farther        arXiv 2503.14476, eq. 10
    dual clip   A < 0: L = min(L, c |A|), c > 1                     arXiv 1912.09729

``min`` holds for both signs of A. It removes the gradient where the policy already moved
far enough in the direction of A, and never where it moved the wrong way:

    A > 0: no gradient where r > 1 + eps_high       A < 0: none where r < 1 - eps

The dual clip removes it where a token with A < 0 became far more likely, r > c: only a
stale sampler gets there, and there the gradient, proportional to r, has no bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from example_trainer.losses.tokens import LossInputs, bounded, ratio_metrics
from example_trainer.settings.loss import LossSettings


@dataclass(frozen=True)
class Clipped:
    loss: Tensor  # (B, T)
    by_clip: Tensor  # (B, T) bool: the clip removed the gradient
    by_dual: Tensor  # (B, T) bool: the dual clip did


def clip(
    ratio: Tensor, advantages: Tensor, settings: LossSettings, dual_clip: float | None = None
) -> Clipped:
    """The clipped loss of every token, from (B, T) ratios and advantages."""
    high = settings.clip_eps if settings.clip_eps_high is None else settings.clip_eps_high
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - settings.clip_eps, 1 + high) * advantages
    objective = torch.minimum(unclipped, clipped)
    by_dual = torch.zeros_like(objective, dtype=torch.bool)
    if dual_clip is not None:
        lowest = dual_clip * advantages
        by_dual = (advantages < 0) & (objective < lowest)
        objective = torch.where(by_dual, lowest, objective)
    return Clipped(-objective, clipped < unclipped, by_dual)


def clipped_loss(
    batch: LossInputs, centre_logprobs: Tensor, settings: LossSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """(B, T) clipped loss of the ratio to ``centre_logprobs``, and token sums of its metrics."""
    tokens = batch.tokens
    log_ratio = bounded(batch.log_ratio(centre_logprobs))
    advantages = tokens.only(batch.advantages)
    clipped = clip(log_ratio.exp(), advantages, settings, settings.dual_clip)
    batch.clipped.append(clipped.by_clip | clipped.by_dual)
    return clipped.loss, {
        "clip_ratio": tokens.total(clipped.by_clip),
        "dual_clip_ratio": tokens.total(clipped.by_dual),
        **ratio_metrics(tokens, log_ratio),
    }
