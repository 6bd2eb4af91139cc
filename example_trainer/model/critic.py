"""Value model with a number per position: critic of advantage gae, reward model.

A transformers token classification model with a single label, so saved models open with
``AutoModelForTokenClassification``. A causal model becomes a value model by a head of zeros:
its first values are 0, which is what advantages without a critic assume.

The value of a trained token is that of the state before it, at the position that predicts
it: the same place as its logprob. ``valued_row`` makes a row whose value is that after the
whole sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.wire import MASKED
from example_trainer.data.packing import MicroBatch
from example_trainer.data.rows import Row, unsampled_row
from example_trainer.distributed.ranks import Ranks
from example_trainer.losses.tokens import TokenMask
from example_trainer.model import loading
from example_trainer.model.policy import PackedModel
from example_trainer.model.scoring import (
    VALUE_HEADS,
    ValueModule,
    inputs_of,
    scatter,
    scored_mask,
    value_head,
)
from example_trainer.settings.batch import LoadSettings


@dataclass
class ValueModel(PackedModel):
    """A model with a scalar head, planned and packed as the policy is."""

    module: ValueModule

    def score(self, microbatch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Values of the trained tokens of a micro-batch and their mask, both (B, T)."""
        inputs = inputs_of(microbatch, self.device, padded=self.padded)
        values = scatter(microbatch, self.module(inputs), self.device)
        return values, scored_mask(microbatch, self.device)

    def trained_values(self, rows: Sequence[Row]) -> list[list[float]]:
        """Value at every trained token, without a gradient; every rank calls it."""
        return self._score_trained(rows, lambda microbatch: self.score(microbatch)[0])


def valued_row(tokens: list[int], group: str) -> Row:
    """A row with a single trained token after the sequence.

    Its value is that at the last token of ``tokens``. The appended token is never computed.
    """
    labels = [MASKED] * (len(tokens) - 1) + [tokens[-1]]
    return unsampled_row([*tokens, tokens[-1]], group, labels)


def load_value_model(
    settings: LoadSettings, name: str | None = None, world: Ranks | None = None
) -> ValueModel:
    """Load ``name`` (default: ``model_name``) as a value model.

    A model that brings a head for a single label keeps it. All of its weights are trained.

    Args:
        world: the ranks that train it; the model is sharded over them, and every rank calls
            this. None: it stays whole.

    Raises:
        ConfigError: it cannot be loaded, or its kind has no token classification form.
    """
    from transformers import AutoModelForTokenClassification

    name = name or settings.model_name

    def prepare(model: Any) -> None:
        loading.checkpoint_activations(model, settings)

    kind, options = AutoModelForTokenClassification, {"num_labels": 1}
    values, unsaved = loading.packed_model(
        loading.Blueprint(ValueModel, ValueModule, kind, settings, name, options),
        world,
        prepare,
    )
    if unsaved & set(VALUE_HEADS):
        for parameter in value_head(values.model).parameters():
            torch.nn.init.zeros_(parameter)
    return values


def value_loss(
    values: Tensor,  # (B, T) of the critic being trained
    old_values: Tensor,  # (B, T) of the critic before the first step on this batch
    returns: Tensor,  # (B, T) of gae.token_advantages
    mask: Tensor,  # (B, T) weight of each token; 0 where not trained
    clip_eps: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the clipped squared error of PPO's critic, and its token sums.

        L = 1/2 sum m max((v - R)^2, (v_old + clip(v - v_old, -eps, eps) - R)^2)

    A value moves at most ``clip_eps`` toward its return per batch: ``max`` removes the
    gradient where it moved farther, and keeps it where it moved the wrong way.

    ``value_mean``, ``return_mean``, ``value_error`` (squared, not clipped), and
    ``value_clip_ratio``, tokens whose gradient the clip removed.
    """
    tokens = TokenMask.of(mask)
    values, old = tokens.only(values), tokens.only(old_values.detach())
    returns = tokens.only(returns.detach())
    near = old + (values - old).clamp(-clip_eps, clip_eps)
    error, near_error = (values - returns) ** 2, (near - returns) ** 2
    return tokens.loss_sum(torch.maximum(error, near_error) / 2), {
        "value_mean": tokens.total(values),
        "return_mean": tokens.total(returns),
        "value_error": tokens.total(error),
        "value_clip_ratio": tokens.total(near_error > error),
    }
