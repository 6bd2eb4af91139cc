"""The clip shared by decoupled and gspo, for a ratio r and an advantage A.

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

from example_trainer.settings.loss import LossSettings


@dataclass(frozen=True)
class Clipped:
    loss: Tensor  # (B, T)
    by_clip: Tensor  # (B, T) bool: the clip removed the gradient
    by_dual: Tensor  # (B, T) bool: the dual clip did


@dataclass(frozen=True)
class Eps:
    """How far a ratio may fall below 1 and rise above it."""

    low: float
    high: float

    def of(self, settings: LossSettings) -> Eps:
        """Defaults of a loss, replaced by values that the settings name.

        ``clip_eps`` without ``clip_eps_high`` sets both.
        """
        eps = self
        if "clip_eps" in settings.model_fields_set:  # the setting's default is for tokens
            eps = Eps(settings.clip_eps, settings.clip_eps)
        if settings.clip_eps_high is None:
            return eps
        return Eps(eps.low, settings.clip_eps_high)


TOKEN_EPS = Eps(0.2, 0.2)


def clip(
    ratio: Tensor, advantages: Tensor, eps: Eps, dual_clip: float | None = None
) -> Clipped:
    """The clipped loss of every token, from (B, T) ratios and advantages."""
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - eps.low, 1 + eps.high) * advantages
    objective = torch.minimum(unclipped, clipped)
    by_dual = torch.zeros_like(objective, dtype=torch.bool)
    if dual_clip is not None:
        lowest = dual_clip * advantages
        by_dual = (advantages < 0) & (objective < lowest)
        objective = torch.where(by_dual, lowest, objective)
    return Clipped(-objective, clipped < unclipped, by_dual)
