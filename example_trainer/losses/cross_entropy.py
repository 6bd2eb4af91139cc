"""Cross entropy: imitate every trained token, whatever it was worth.

    L = -sum m log p                                                    m: weight of a token

Advantages and the sampler are ignored, so rows need no logprobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from example_trainer.losses.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor


def loss(
    logprobs: Tensor,  # (B, T)
    proximal_logprobs: Tensor | None,  # not used
    behaviour_logprobs: Tensor | None,  # not used
    advantages: Tensor | None,  # not used
    loss_mask: Tensor,  # (B, T)
    cfg: object,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of -log p; ``nll`` is the same with every token counting once."""
    tokens = Tokens.of(loss_mask)
    nll = -tokens.only(logprobs)
    return tokens.loss_sum(nll), {"nll": tokens.total(nll)}
