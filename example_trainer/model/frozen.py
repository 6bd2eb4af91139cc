"""Frozen weights: their choice, and their storage in the compute dtype where that changes no bit.

A trained weight is float32, because an update of 1e-6 of a bfloat16 weight rounds to nothing.
A frozen weight is never updated. A weight that a forward pass rounds before use is stored
rounded, which takes half of the memory, and a pass makes no copy of it:

    several ranks, cpu_offload   every frozen weight: FSDP gathers all in the low precision
    a single device              matrices of linear layers, and the embedding: autocast and
                                 ``scoring.Backbone`` round these. Norms, biases and experts of
                                 a stack are used in float32, and stay so.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from atroposlib.errors import ConfigError
from example_trainer.model.scoring import decoder_layers, inner_model


def train_only_layers(model: Any, indices: Sequence[int] | None) -> None:
    """Make only these decoder layers trainable, None: all; ConfigError for an absent layer."""
    if indices is None:
        return
    layers = decoder_layers(model)
    if wrong := [i for i in indices if not 0 <= i < len(layers)]:
        raise ConfigError(f"train_layer_indices {wrong}: the model has {len(layers)} layers")
    model.requires_grad_(False)
    for i in indices:
        layers[i].requires_grad_(True)


def freeze_by_name(model: Any, patterns: Sequence[str]) -> None:
    """Freeze the weights whose names match a pattern.

    Raises ConfigError: a pattern matches no weight, or no weight is left to train.
    """
    for pattern in patterns:
        names = [name for name, _ in model.named_parameters() if fnmatchcase(name, pattern)]
        if not names:
            known = sorted(
                {name.rpartition(".layers.")[0] for name, _ in model.named_parameters()}
            )
            raise ConfigError(
                f"freeze {pattern!r}: no weight has such a name; * stands for any text, and"
                f" layers are below {', '.join(filter(None, known))}"
            )
        for name in names:
            model.get_parameter(name).requires_grad_(False)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ConfigError(f"freeze {list(patterns)}: no weight is left to train")


@torch.no_grad()
def hold_in(dtype: torch.dtype, model: nn.Module, *, sharded: bool) -> None:
    """Store the frozen weights of ``model`` in ``dtype``, in place.

    Call it after the adapter is in the model: peft makes the matrices of an adapter in the
    precision of the weight that they adapt, and they are trained.

    Args:
        sharded: FSDP is going to gather the weights in ``dtype``.
    """
    rounded = _rounded_by_autocast(model)
    for parameter in model.parameters():
        frozen = parameter.is_floating_point() and not parameter.requires_grad
        if frozen and (sharded or id(parameter) in rounded):
            parameter.data = parameter.data.to(dtype)


def _rounded_by_autocast(model: nn.Module) -> set[int]:
    """The ids of the weights that are read by nothing but rounding operations."""
    from transformers.pytorch_utils import Conv1D

    inner: Any = inner_model(model)
    embedding = inner.get_input_embeddings()
    rounded: set[int] = set()
    exact: set[int] = set()
    for module in model.modules():
        # A subclass may do more with its weight: Gemma 3 scales the embedding in its precision.
        kind = type(module)
        rounds = kind in (nn.Linear, Conv1D) or (module is embedding and kind is nn.Embedding)
        for name, parameter in module.named_parameters(recurse=False):
            group = rounded if rounds and name == "weight" else exact
            group.add(id(parameter))
    return rounded - exact
