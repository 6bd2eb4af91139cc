"""M2PO, arXiv 2510.01161: leave out the farthest tokens until the second moment is small.

    m2_t = (log p_proximal - log p_behaviour)^2
    keep = all tokens but the fewest with the largest m2 whose absence brings the mean m2 of
           the rest below m2_threshold; one token always stays
    L = -sum m keep exp(log p - log p_behaviour) A                      m: weight of a token

There is no clip. Left-out tokens count in the divisor like all tokens, so the gradient is not
scaled up. Among equal m2 the earlier token is left out first.

The kept tokens depend on the whole minibatch. ``batch_mask`` selects tokens over all rows,
and ``loss`` takes the selection as ``keep``, so that it does not depend on how rows are
packed into micro-batches. Without ``keep`` the tokens of the given rows are selected from.

The mask bounds the effect of an old sampler, not that of further steps on the batch. The
method is made for one step per batch (minibatches 1, ppo_epochs 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from example_trainer.losses.tokens import (
    LossInputs,
    bound_log_ratio,
    kl_estimate,
    ratio_metrics,
)
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over kept tokens of the weighted policy gradient, and token sums of its metrics."""
    tokens, keep = batch.tokens, batch.keep
    behaviour = tokens.only(batch.behaviour_logprobs.detach())
    log_w = tokens.only(batch.proximal_logprobs.detach()) - behaviour
    if keep is None:
        keep = torch.ones_like(tokens.trained)
        keep[tokens.trained] = kept_weights(log_w[tokens.trained] ** 2, settings.m2_threshold)
    log_ratio = bound_log_ratio(tokens.only(batch.logprobs) - behaviour)
    objective = log_ratio.exp() * tokens.only(batch.advantages)
    metrics = {
        **ratio_metrics(tokens, log_ratio),
        "importance_kl": tokens.total(kl_estimate(bound_log_ratio(log_w))),
        "filtered_ratio": tokens.total(keep == 0),
    }
    return tokens.loss_sum(-torch.where(keep != 0, objective, 0.0)), metrics


def batch_mask(
    proximal_R_T: Sequence[Sequence[float]],
    behaviour_R_T: Sequence[Sequence[float]],
    settings: LossSettings,
) -> list[list[bool]]:
    """For every trained token of all rows of a minibatch, whether it is kept."""
    lengths = [len(row) for row in proximal_R_T]
    proximal, behaviour = (
        torch.tensor([value for row in rows for value in row], dtype=torch.float64)
        for rows in (proximal_R_T, behaviour_R_T)
    )
    kept_N = kept_weights((proximal - behaviour) ** 2, settings.m2_threshold)
    flags = iter(kept_N.tolist())
    return [list(islice(flags, length)) for length in lengths]


def kept_weights(m2: Tensor, threshold: float) -> Tensor:
    """(N,) squared log weights -> (N,) bool, False for the fewest largest to leave out.

    A NaN is kept and makes the loss NaN.
    """
    if not len(m2):
        return torch.ones_like(m2, dtype=torch.bool)
    m2 = m2.double().nan_to_num(nan=0.0)
    ascending, order = m2.flip(0).sort(stable=True)  # flipped: of equals the later comes first
    means = ascending.cumsum(0) / torch.arange(1, len(m2) + 1, device=m2.device)
    # Means of ascending numbers never fall, so the means below the threshold come first.
    count = max(1, int((means < threshold).sum()))
    keep = torch.zeros_like(m2, dtype=torch.bool)
    keep[len(m2) - 1 - order[:count]] = True
    return keep
