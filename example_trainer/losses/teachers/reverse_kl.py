"""Reverse KL to a teacher on the policy's own tokens, which is on-policy distillation.

    d = log p - log p_T                      p_T: the teacher's probability of the sampled token
    r = exp(log p - log p_centre), w         see losses.importance
    L = sum m w (r d - r + 1)                m: weight of a token
    gradient                                 m w r d grad log p

Over samples of the sampler, w r = p / p_behaviour, the averages of value and gradient are
KL(p || p_T) of the whole vocabulary and its gradient, though the teacher gives a single number for
each token. At the first step r = 1 and L is d, of the trainer's own logprobs: the sampler's rounding
is no distance to the teacher. Where p_T = p, value and gradient are exactly 0.

The reward has no part in it. Trained tokens without the teacher's logprob add nothing but count in
the divisor. There is no clip: take few steps per batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from example_trainer.losses.importance import trust_region
from example_trainer.losses.tokens import LossInputs, bound_log_ratio, ratio_metrics
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the divergence, and token sums of its metrics.

    Metrics: ``distill_kl``, d, whose mean is the reverse KL; ``distill_share``, trained tokens
    with a logprob of the teacher.

    Raises:
        ConfigError: the batch has no teacher.
    """
    if batch.teacher_sampled is None:
        raise ConfigError(
            "the loss reverse_kl needs the teacher's logprob of every sampled token: name a"
            " teacher in the settings of the environment (env.teacher), or choose another loss"
        )
    tokens, region = batch.tokens, trust_region(batch, settings)
    teacher = tokens.only(batch.teacher_sampled)
    is_sampler = settings.ratio_to == "sampler"
    centre = batch.behaviour_logprobs if is_sampler else batch.proximal_logprobs
    log_ratio = bound_log_ratio(region.log_ratio)
    distance = log_ratio + (tokens.only(centre.detach()) - teacher)
    divergence = region.weight * (log_ratio.exp() * distance - torch.expm1(log_ratio))
    has_teacher = tokens.trained & ~(teacher > 0)  # above 0: absent
    return tokens.loss_sum(torch.where(has_teacher, divergence, 0.0)), {
        **ratio_metrics(tokens, log_ratio),
        **region.metrics,
        "distill_kl": tokens.total(torch.where(has_teacher, distance, 0.0)),
        "distill_share": tokens.total(has_teacher),
    }
