"""Losses with PPO's clip: decoupled, ppo, grpo, gspo. Each is the clip around another ratio.

    clip        L = -min(r A, clip(r, 1 - eps, 1 + eps_high) A)     arXiv 1707.06347, eq. 7
    clip-higher eps_high > eps lets rare tokens rise farther        arXiv 2503.14476, eq. 10
    dual clip   A < 0: L = min(L, c |A|), c > 1                     arXiv 1912.09729

``min`` holds for both signs of A. It removes the gradient where the policy already moved
far enough in the direction of A, and never where it moved the wrong way:

    A > 0: no gradient where r > 1 + eps_high       A < 0: none where r < 1 - eps

The dual clip removes it where a token with A < 0 became far more likely, r > c: only a
stale sampler gets there, and there the gradient, proportional to r, has no bound.

Every loss is the sum of L over tokens, each times its weight m. Where r is centred on the
proximal policy, r = 1 on the first step on a batch, and the gradient is that of -m A log p
(decoupled: -m w A log p) for any eps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from example_trainer.losses.importance import importance
from example_trainer.losses.tokens import LossInputs, bounded, ratio_metrics
from example_trainer.settings.loss import LossSettings


def decoupled(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Decoupled PPO, for batches of older policies: arXiv 2505.24298 eq. 5, after 2110.00641.

    r = exp(log p - log p_proximal)                     how far this batch moved the policy
    w = sg[exp(log p_proximal - log p_behaviour)]       how old the sampler was
    L = -w min(r A, clip(r, 1 - eps, 1 + eps_high) A)

    The clip bounds the step from the proximal policy; w corrects for the sampler, without a
    gradient. By default w is truncated to importance_cap, see losses.importance.
    """
    losses, metrics = clipped_loss(batch, batch.proximal_logprobs, settings)
    weight, weighed = importance(batch, settings)
    return batch.tokens.loss_sum(weight * losses), {**metrics, **weighed}


def ppo(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO, arXiv 1707.06347 eq. 7, centred on the proximal policy.

    r = exp(log p - log p_proximal)

    The sampler's logprobs are not used: right when the sampler is the proximal policy, and a
    bias when it is older or computes differently (``decoupled`` corrects it).
    """
    losses, metrics = clipped_loss(batch, batch.proximal_logprobs, settings)
    return batch.tokens.loss_sum(losses), metrics


def grpo(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's loss as GRPO uses it, arXiv 2402.03300, centred on the policy that sampled.

    r = exp(log p - log p_behaviour)

    The ratio mixes how far the policy moved on this batch with how old the sampler is, so
    tokens of an old sampler are clipped for its age; ``decoupled`` separates the two. The
    proximal policy is not used.
    """
    losses, metrics = clipped_loss(batch, batch.behaviour_logprobs, settings)
    return batch.tokens.loss_sum(losses), metrics


def gspo(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """GSPO, arXiv 2507.18071 eq. 5-7: one ratio per sequence, the geometric mean of its tokens'.

    s = exp(mean over the row's trained tokens of (log p - log p_behaviour))
    L = -min(s A, clip(s, 1 - eps, 1 + eps_high) A)

    A is the row's advantage; where its tokens have different advantages, their mean. The paper
    averages over sequences, which is loss_aggregation ``sequence``: the weights of a row then
    add up to 1. With ``token`` long sequences count more. s moves far less than the ratio of a
    token. The default eps of 0.2 hardly ever binds; the paper uses clip_eps 3e-4 and
    clip_eps_high 4e-4.

    ``ratio_mean`` is of s, every token counting; ``approx_kl`` is of single tokens, as in
    the other losses.
    """
    tokens = batch.tokens
    log_ratio = batch.log_ratio(batch.behaviour_logprobs)
    ratio = bounded(tokens.row_mean(log_ratio)).exp().expand_as(log_ratio)
    # (B, 1) advantages become (B, T) by the where in ``only``.
    mean_advantage = tokens.row_mean(tokens.only(batch.advantages)).expand_as(log_ratio)
    clipped = clip(ratio, mean_advantage, settings)
    metrics = {
        "clip_ratio": tokens.total(clipped.by_clip),
        **ratio_metrics(tokens, bounded(log_ratio)),
        "ratio_mean": tokens.total(ratio),
    }
    return tokens.loss_sum(clipped.loss), metrics


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
    return clipped.loss, {
        "clip_ratio": tokens.total(clipped.by_clip),
        "dual_clip_ratio": tokens.total(clipped.by_dual),
        **ratio_metrics(tokens, log_ratio),
    }
