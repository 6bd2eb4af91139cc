"""Losses by name. A loss is a function in a file and a line in ``FORMULAS``, or a plug-in.

A file defines ``loss(batch: LossInputs, settings: LossSettings)``; ``get(name)`` returns it
with the tensors as separate arguments:

    loss(logprobs, proximal_logprobs, behaviour_logprobs, advantages, loss_mask, cfg)

All are (B, T) tensors, see ``tokens.LossInputs``; further fields of it are keyword arguments.
``cfg`` is a TrainingConfig, or any object with some of its fields. Both return
``(loss_sum, metrics)``.

Row b is a sequence: losses over whole sequences (gspo, importance_level sequence) go by
row. A loss returns sums, never means: the loop divides by the count of the whole batch, so
the gradient does not depend on how rows were split into micro-batches. Metrics are sums
over trained tokens as well, each token counting once.

The same name means the same in every loss:

    ratio_mean               r, the policy against the centre of its loss
    approx_kl                r - 1 - log r: KL(centre || policy), never negative
    clip_ratio               tokens whose gradient the clip removed
    dual_clip_ratio          tokens whose gradient the dual clip removed
    importance_weight        the weight as applied, after truncation or masking
    importance_kl            w - 1 - log w: KL(behaviour || proximal), before either
    importance_capped_ratio  tokens whose weight was truncated
    filtered_ratio           tokens left out of the gradient, by mask or by M2PO

NaN in a trained token makes the loss and the gradient NaN. That step is skipped and
counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from atroposlib.utils.command import plugins
from example_trainer.settings.loss import LossSettings

if TYPE_CHECKING:
    from torch import Tensor

    from example_trainer.losses.tokens import LossInputs

    Formula = Callable[[LossInputs, LossSettings], tuple[Tensor, dict[str, Tensor]]]
    Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
    BatchMask = Callable[[Any, Any, LossSettings], list[list[bool]]]

# Name -> file of this folder. Launchers check names here, so no file is imported before its use:
# each imports torch.
FORMULAS = {
    "decoupled": "decoupled",
    "ppo": "decoupled",
    "grpo": "decoupled",
    "gspo": "gspo",
    "sapo": "sapo",
    "cispo": "cispo",
    "m2po": "m2po",
    "dppo": "dppo",
    "reinforce": "reinforce",
    "cross_entropy": "cross_entropy",
    "distillation": "teachers.distillation",
    "jsd": "teachers.jsd",
    "reverse_kl": "teachers.reverse_kl",
}


# They read the teacher's K likeliest tokens.
OF_CANDIDATES = frozenset({"distillation", "jsd"})
# They read the teacher's logprob of each sampled token.
OF_SAMPLED = frozenset({"reverse_kl"})
OF_A_TEACHER = OF_SAMPLED | OF_CANDIDATES
WITHOUT_SAMPLER = frozenset({"cross_entropy", *OF_CANDIDATES})
WITHOUT_PROXIMAL = frozenset({"dppo", *WITHOUT_SAMPLER})
ALWAYS_PROXIMAL = frozenset({"reinforce", "m2po"})  # weight or mask needs it, for any ratio_to
WITH_BATCH_MASK = frozenset({"m2po"})


@cache
def get(name: str) -> Loss:
    """The loss of that name; ConfigError with the list of all if there is none."""
    from example_trainer.losses.tokens import LossInputs

    known = formula(name)

    def loss(
        logprobs: Tensor,  # (B, T)
        proximal_logprobs: Tensor,  # (B, T)
        behaviour_logprobs: Tensor,  # (B, T)
        advantages: Tensor,  # (B, T) or (B, 1)
        loss_mask: Tensor,  # (B, T)
        cfg: object,
        **more: Any,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        inputs = LossInputs(
            logprobs, proximal_logprobs, behaviour_logprobs, advantages, loss_mask, **more
        )
        return known(inputs, LossSettings.of(cfg))

    loss.__doc__ = known.__doc__
    return loss


def formula(name: str) -> Formula:
    """Loss as a function of ``LossInputs`` and ``LossSettings``; ConfigError if unknown."""
    if plugins.target_of(plugins.LOSS, name, FORMULAS) is not None:
        return _of_plugin(name)
    known: Formula = import_module(f"{__name__}.{FORMULAS[name]}").loss
    return known


def _of_plugin(name: str) -> Formula:
    """Loss of a plug-in, whose results are checked; raises PluginError in a call."""
    import torch

    own = plugins.load_plugin(plugins.LOSS, name)

    def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
        result = own(batch, settings)
        total, metrics = (
            result if isinstance(result, tuple) and len(result) == 2 else (None, 0)
        )
        if not isinstance(total, torch.Tensor) or total.dim() or not isinstance(metrics, dict):
            problem = "has to return (sum of the loss, a scalar tensor; dict of metrics)"
            raise plugins.result_error(plugins.LOSS, own, problem)
        return total, {key: torch.as_tensor(value) for key, value in metrics.items()}

    loss.__doc__ = own.__doc__
    return loss


def needs_sampler(name: str) -> bool:
    """Whether rows must come with the logprobs of the policy that sampled the tokens."""
    return name not in WITHOUT_SAMPLER


def needs_proximal(settings: LossSettings) -> bool:
    """Whether the loss uses the proximal logprobs; if not, any tensor will do."""
    if settings.loss not in FORMULAS:  # a plug-in may read every field
        return True
    if settings.ratio_to == "trainer":
        return settings.loss not in WITHOUT_PROXIMAL
    return settings.loss in ALWAYS_PROXIMAL


def added_loss(settings: LossSettings) -> str | None:
    """The loss that ``distill_coef`` adds; None: none."""
    is_added = settings.distill_coef > 0 and settings.loss not in OF_A_TEACHER
    return settings.distill_loss if is_added else None


def teacher_losses(settings: LossSettings) -> frozenset[str]:
    """The losses of these settings that read tokens and logprobs of a teacher."""
    return frozenset(filter(None, (settings.loss, added_loss(settings)))) & OF_A_TEACHER


def batch_mask_of(name: str) -> BatchMask | None:
    """Function that selects tokens over all rows of a minibatch; None for most losses.

    ``batch_mask(name)(proximal_R_T, behaviour_R_T, cfg) -> keep_R_T``, an entry per trained
    token. The loss takes it, padded like its other tensors, as ``keep``.
    """
    if name not in WITH_BATCH_MASK:
        return None
    mask: BatchMask = import_module(f"{__name__}.{FORMULAS[name]}").batch_mask
    return mask
