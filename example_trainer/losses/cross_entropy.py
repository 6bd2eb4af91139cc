"""Cross entropy: every trained token, unweighted by advantage.

    L = -sum m log p                                                    m: weight of a token

Advantages and the sampler's logprobs are not used, so rows need neither.
``settings`` are not used.
"""

from __future__ import annotations

from torch import Tensor

from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of -log p; ``nll`` is the same with every token counting once."""
    tokens = batch.tokens
    nll = -tokens.only(batch.logprobs)
    return tokens.loss_sum(nll), {"nll": tokens.total(nll)}
