"""Losses by name. A loss is one function in one file and one line here.

A loss takes (B, T) tensors and returns ``(loss_sum, metrics)``:

    loss(logprobs, proximal_logprobs, behaviour_logprobs, advantages, loss_mask, cfg)

    logprobs             of the policy being trained; the only one with a gradient
    proximal_logprobs    of the policy before the first step on this batch
    behaviour_logprobs   of the policy that sampled, as it said itself
    advantages           per token; (B, 1) will do
    loss_mask            weight of each token, or a bool; 0 where not trained, and then the
                         other tensors may hold anything there, NaN too
    cfg                  TrainingConfig, or any object with the settings that matter

Row b is one sequence: losses that look at whole sequences (gspo, importance_level
sequence) do so by row. A loss returns sums, never means: the loop divides by the count of
the whole batch, so the gradient does not depend on how rows were split into forward
passes. Metrics are sums over trained tokens as well, each token counting once.

The same name means the same in every loss:

    ratio_mean               r, the policy against the one its loss is centred on
    approx_kl                r - 1 - log r: KL(centre || policy), never negative
    clip_ratio               tokens whose gradient the clip removed
    dual_clip_ratio          tokens whose gradient the dual clip removed
    importance_weight        the weight as applied, after truncation or masking
    importance_kl            w - 1 - log w: KL(behaviour || proximal), before either
    importance_capped_ratio  tokens whose weight was truncated
    filtered_ratio           tokens left out of the gradient, by mask or by M2PO

NaN in a trained token makes the loss NaN, and the gradient with it: such a step is skipped
and counted, never taken on what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError
from example_trainer.losses import (
    cross_entropy,
    decoupled,
    distillation,
    grpo,
    gspo,
    m2po,
    ppo,
    reinforce,
    sapo,
)

if TYPE_CHECKING:
    from torch import Tensor

    Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
    BatchMask = Callable[[Any, Any, object], list[list[bool]]]

LOSSES: dict[str, Loss] = {
    "decoupled": decoupled.loss,
    "ppo": ppo.loss,
    "grpo": grpo.loss,
    "gspo": gspo.loss,
    "sapo": sapo.loss,
    "m2po": m2po.loss,
    "reinforce": reinforce.loss,
    "cross_entropy": cross_entropy.loss,
    "distillation": distillation.loss,
}
WITHOUT_SAMPLER = frozenset({"cross_entropy", "distillation"})
WITHOUT_PROXIMAL = frozenset({"grpo", "gspo", "sapo", *WITHOUT_SAMPLER})
BATCH_MASKS: dict[str, BatchMask] = {"m2po": m2po.batch_mask}


def get(name: str) -> Loss:
    """The loss of that name.

    Raises:
        ConfigError: there is none; lists those there are.
    """
    if name not in LOSSES:
        raise ConfigError(f"loss {name!r} is unknown; there are: {', '.join(sorted(LOSSES))}")
    return LOSSES[name]


def needs_sampler(name: str) -> bool:
    """Whether rows must come with the logprobs of the policy that sampled them."""
    return name not in WITHOUT_SAMPLER


def needs_proximal(name: str) -> bool:
    """Whether the loss looks at the proximal policy at all; if not, any tensor will do."""
    return name not in WITHOUT_PROXIMAL


def batch_mask(name: str) -> BatchMask | None:
    """What such a loss must ask once per minibatch over all of its rows; None for most.

    ``batch_mask(name)(proximal_R_T, behaviour_R_T, cfg) -> keep_R_T``, one entry per trained
    token; the loss gets it back, laid out as its other tensors, as ``keep``.
    """
    return BATCH_MASKS.get(name)
