"""Inputs of a loss, the mask of its trained tokens, and bounded log ratios."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

# exp(20) = 5e8 is finite and squares without overflow in float32. A larger ratio carries no
# more information.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class TokenMask:
    """Trained entries of (B, T) tensors, and the weight of each."""

    trained: Tensor  # (B, T) bool
    weights: Tensor  # (B, T); 0 where not trained, and where a trained token is left out

    @classmethod
    def of(cls, loss_mask: Tensor, trained: Tensor | None = None) -> TokenMask:
        # "!= 0" and not "> 0": a NaN weight counts as trained and makes the loss NaN.
        return cls(loss_mask != 0 if trained is None else trained, loss_mask)

    def only(self, values: Tensor) -> Tensor:
        """``values``, 0 where not trained, in float32 at least.

        The values of untrained entries are replaced before anything is computed with them,
        because 0 x NaN is NaN, in the value and in the gradient.
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


@dataclass(frozen=True)
class LossInputs:
    """Tensors of a micro-batch. Only ``logprobs`` and ``student_logprobs`` have a gradient.

    Masked entries may hold anything, NaN too. A loss reads the fields that its formula names.
    """

    logprobs: Tensor  # (B, T) of the policy being trained
    proximal_logprobs: Tensor  # (B, T) of the policy before the first step on this batch
    behaviour_logprobs: Tensor  # (B, T) of the sampler, as the engine returned them
    advantages: Tensor  # (B, T) or (B, 1)
    loss_mask: Tensor  # (B, T) weight of each token, or bool; 0 where not trained
    keep: Tensor | None = None  # (B, T) result of a batch mask; 0 leaves the token out
    student_logprobs: Tensor | None = None  # (B, T, K) at the teacher's candidates
    teacher_logprobs: Tensor | None = None  # (B, T, K)
    teacher_mask: Tensor | None = None  # (B, T, K) which candidates there are; None: all
    teacher_sampled: Tensor | None = None  # (B, T) of the sampled token; above 0: absent
    clipped: list[Tensor] = field(default_factory=list)  # a loss that clips adds (B, T) bool
    # (B, T) bool, None: where the weight is not 0. A trained token of weight 0 adds nothing to the
    # loss, and counts in the ratio and the importance weight of its sequence.
    trained: Tensor | None = None

    @cached_property
    def tokens(self) -> TokenMask:
        return TokenMask.of(self.loss_mask, self.trained)

    def log_ratio(self, centre_logprobs: Tensor) -> Tensor:
        """(B, T) log p - log p_centre, not bounded, 0 where not trained."""
        only = self.tokens.only
        return only(self.logprobs) - only(centre_logprobs.detach())


def at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def bound_log_ratio(log_ratio: Tensor) -> Tensor:
    """``log_ratio`` limited to MAX_LOG_RATIO on both sides; no gradient beyond.

    Unlike Tensor.clamp this keeps a NaN visible: clamp gives a NaN the gradient 0.
    """
    log_ratio = torch.where(log_ratio > MAX_LOG_RATIO, MAX_LOG_RATIO, log_ratio)
    return torch.where(log_ratio < -MAX_LOG_RATIO, -MAX_LOG_RATIO, log_ratio)


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """r - 1 - log r: of samples of q, with r = p / q, the estimate of KL(q || p) >= 0."""
    return torch.expm1(log_ratio) - log_ratio


def ratio_metrics(tokens: TokenMask, log_ratio: Tensor) -> dict[str, Tensor]:
    """Sums over trained tokens of the ratio and of the KL estimated from it, from (B, T)."""
    log_ratio = log_ratio.detach()
    return {
        "ratio_mean": tokens.total(log_ratio.exp()),
        "approx_kl": tokens.total(kl_estimate(log_ratio)),
    }
