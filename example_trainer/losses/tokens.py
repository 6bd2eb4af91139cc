"""What every loss does first and last: leave out what is masked, sum what is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# exp(20) = 5e8 is finite and squares without overflow in float32; beyond it a ratio tells
# nothing but "far away".
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class Tokens:
    """Which entries of (B, T) tensors are trained, and with which weight."""

    trained: Tensor  # (B, T) bool
    weights: Tensor  # (B, T); 0 where not trained

    @classmethod
    def of(cls, loss_mask: Tensor) -> Tokens:
        # "!= 0" and not "> 0": a NaN weight counts as trained, so that it shows.
        return cls(loss_mask != 0, loss_mask)

    def only(self, values: Tensor) -> Tensor:
        """``values``, 0 where not trained, in float32 at least.

        The values of other entries are replaced before anything is computed from them:
        0 x NaN is NaN, in the value and in the gradient.
        """
        return torch.where(self.trained, at_least_float32(values), 0.0)

    def loss_sum(self, losses: Tensor) -> Tensor:
        """Weighted sum of (B, T) losses, finite where not trained. Scalar, differentiable."""
        return (self.weights.to(losses.dtype) * losses).sum()

    def total(self, values: Tensor) -> Tensor:
        """Sum over trained tokens, each counting once. Scalar, without a gradient."""
        values = values.detach()
        return torch.where(self.trained, values, torch.zeros_like(values)).sum()

    def row_mean(self, values: Tensor) -> Tensor:
        """(B, T) -> (B, 1), over the trained tokens of each row; ``values`` 0 elsewhere."""
        return values.sum(-1, keepdim=True) / self.trained.sum(-1, keepdim=True).clamp(min=1)


def at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def bounded(log_ratio: Tensor) -> Tensor:
    """Within MAX_LOG_RATIO of 0; no gradient beyond.

    Tensor.clamp would do the same, and hide a NaN: it passes the value on and a gradient
    of 0.
    """
    log_ratio = torch.where(log_ratio > MAX_LOG_RATIO, MAX_LOG_RATIO, log_ratio)
    return torch.where(log_ratio < -MAX_LOG_RATIO, -MAX_LOG_RATIO, log_ratio)


def kl(log_ratio: Tensor) -> Tensor:
    """r - 1 - log r: of samples of q, with r = p / q, the estimate of KL(q || p) >= 0."""
    return torch.expm1(log_ratio) - log_ratio


def ratio_metrics(tokens: Tokens, log_ratio: Tensor) -> dict[str, Tensor]:
    """Sums over trained tokens of the ratio and of the KL it tells, from (B, T)."""
    log_ratio = log_ratio.detach()
    return {
        "ratio_mean": tokens.total(log_ratio.exp()),
        "approx_kl": tokens.total(kl(log_ratio)),
    }
