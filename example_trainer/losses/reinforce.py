"""REINFORCE (Williams 1992), with an importance weight for older samplers.

    w = sg[exp(log p_proximal - log p_behaviour)], bounded as in losses.importance
    L = -sum m w A log p                                                m: weight of a token

``importance_weight none`` is the plain estimator, right for fresh samples only. Without a
clip further steps on the same batch may move too far, so take one step per batch.
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.importance import importance
from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the weighted policy gradient, and token sums of the weights."""
    tokens = batch.tokens
    weight, metrics = importance(batch, settings)
    advantages, logprobs = tokens.only(batch.advantages), tokens.only(batch.logprobs)
    return tokens.loss_sum(-weight * advantages * logprobs), metrics
