"""Estimates of KL(policy || reference) from the policy's own samples.

From Schulman, joschu.net/blog/kl-approx.html. With d = log p - log p_ref of a sampled token:

                value          gradient when it is a term of the loss, x grad log p
    k1          d              1: zero on average, without the reference
    k2          d^2 / 2        d: on average the gradient of KL(policy || reference)
    k3          e^-d - 1 + d   1 - e^-d: on average that of KL(reference || policy)

k1 and k3 average to the KL, k2 to it up to third order in d; k2 and k3 are never
negative. Use k2 or k3 in the loss: they agree near the reference, and k3 grows as e^-d on
tokens that became unlikely. Use k1 in the reward, where only the value counts; it can be
negative for a token, and its gradient is that of the policy gradient.
"On average" means over samples of the policy being trained; stale samples bias all three.

With ``behaviour`` the estimate is multiplied by r = exp(log p - log p_behaviour), gradient
included: over samples of any policy, value and gradient of r k3 are then on average those of
KL(policy || reference) (arXiv 2512.02556, eq. 7).
"""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from example_trainer.losses.tokens import TokenMask, bound_log_ratio, kl_estimate


def penalty(
    logprobs: Tensor,  # (B, T)
    ref_logprobs: Tensor,  # (B, T), without a gradient
    estimator: str = "k3",
    mask: Tensor | None = None,  # (B, T) nonzero where trained; None: everywhere
    behaviour: Tensor | None = None,  # (B, T) logprobs of the sampler
) -> Tensor:
    """(B, T) estimates, with the gradient on ``logprobs``; 0 where ``mask`` is 0.

    Pass the mask if untrained entries may hold anything but numbers: multiplied by a weight
    of 0, a NaN stays NaN. d of k3 is held within 20 nats, beyond which it has no gradient.
    Raises ConfigError for another estimator.
    """
    tokens = TokenMask.of(torch.ones_like(logprobs) if mask is None else mask)
    if behaviour is not None:
        log_ratio = bound_log_ratio(tokens.only(logprobs) - tokens.only(behaviour.detach()))
        return log_ratio.exp() * penalty(logprobs, ref_logprobs, estimator, mask)
    d = tokens.only(logprobs) - tokens.only(ref_logprobs.detach())
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    if estimator == "k3":
        return kl_estimate(bound_log_ratio(-d))
    raise ConfigError(f"kl_estimator {estimator!r} is unknown; there are: k1, k2, k3")
