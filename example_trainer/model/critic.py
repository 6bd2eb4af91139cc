"""The value model: one number per position. The critic of advantage gae, the reward model.

A transformers token classification model with one label, so what is saved opens with
``AutoModelForTokenClassification``. A causal model becomes one by a head of zeros: its
first values are 0, which is what advantages without a critic assume.

The value of a trained token is that of the state before it, at the position that predicts
it: the same place as its logprob. ``scored_row`` asks for the value after a whole sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION
from example_trainer.data.packing import Pass
from example_trainer.data.rows import Row
from example_trainer.distributed.ranks import World
from example_trainer.model import fsdp, loading
from example_trainer.model.policy import PackedModel
from example_trainer.model.scoring import (
    VALUE_HEADS,
    ValueModule,
    inputs_of,
    scattered,
    scored_mask,
    value_head,
)
from example_trainer.settings.config import TrainingConfig


@dataclass
class ValueModel(PackedModel):
    """A model with a scalar head, planned and packed as the policy is."""

    module: ValueModule

    def score(self, plan: Pass) -> tuple[Tensor, Tensor]:
        """Values of the trained tokens of one pass and their mask, both (B, T)."""
        inputs = inputs_of(plan, self.device, padded=self.padded)
        values = scattered(plan, self.module(inputs), self.device)
        return values, scored_mask(plan, self.device)

    def _numbers(self, plan: Pass) -> Tensor:
        return self.score(plan)[0]

    def trained_values(self, rows: Sequence[Row]) -> list[list[float]]:
        """Value at every trained token, without a gradient; every rank calls it."""
        return self._trained(rows)


def scored_row(tokens: list[int], group: str, reward: float = 0.0) -> Row:
    """A row whose one trained token stands behind the sequence.

    Its value is the one at the last token of ``tokens``. The token behind is never computed.
    """
    n = len(tokens)
    return Row(
        tokens=[*tokens, tokens[-1]],
        labels=[MASKED] * (n - 1) + [tokens[-1]],
        behaviour_logprobs=[MASKED_LOGPROB] * n,
        versions=[MASKED_VERSION] * n,
        reward=reward,
        group=group,
    )


def load(
    cfg: TrainingConfig, name: str | None = None, world: World | None = None
) -> ValueModel:
    """Load ``name`` (default: ``critic_model``, else ``model_name``) as a value model.

    A model that brings a head for one label keeps it. All of its weights are trained.

    Args:
        world: the ranks that train it; given, it is split over them, and every rank calls
            this. Without, it stays whole.

    Raises:
        ConfigError: it cannot be loaded, or its kind has no token classification form.
    """
    name = name or cfg.critic_model or cfg.model_name
    model = loading.prepared(_token_classifier(cfg, name), cfg)
    loading.checkpoint_activations(model, cfg)
    values = ValueModel(
        ValueModule(model, loading.compute_dtype(cfg)),
        loading.tokenizer(name),
        torch.device(cfg.device),
        cfg.pass_budget,
        max_tokens_per_row=min(cfg.seq_len, loading.model_positions(model)),
        attention_crossover=loading.attention_crossover(model),
    )
    loading.choose_packing(values, cfg)
    if world is not None:
        fsdp.shard(values, cfg, world)
    return values


def _token_classifier(cfg: TrainingConfig, name: str) -> Any:
    from transformers import AutoConfig, AutoModelForTokenClassification

    if cfg.init_from_scratch:
        config = loading.loaded(name, lambda: AutoConfig.from_pretrained(name, num_labels=1))
        model = loading.from_scratch(AutoModelForTokenClassification, config, cfg.seed)
        brought = False
    else:
        model, told = loading.loaded(
            name,
            lambda: AutoModelForTokenClassification.from_pretrained(
                name, num_labels=1, dtype=torch.float32, output_loading_info=True
            ),
        )
        missing = {key.split(".")[0] for key in told["missing_keys"]}
        brought = not missing & set(VALUE_HEADS)
    if not brought:
        head = value_head(model)
        for parameter in head.parameters():
            torch.nn.init.zeros_(parameter)
    return model
