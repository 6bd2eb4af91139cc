"""Whole weights of a sharded model: gather, merge an adapter, load.

Names are those of the transformers model's ``state_dict``; tied weights appear under each
of their names. Every function is collective: all ranks call it, in the same order, and
rank 0 passes or gets the tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from example_trainer.distributed import collectives
from example_trainer.model import adapter
from example_trainer.model.policy import PackedModel


def iter_weights(model: PackedModel, *, merged: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Name and whole tensor, one after another, on the device and in the stored precision.

    For readers that use one tensor at a time: no rank ever holds the whole model.

    Args:
        merged: an adapter is added to the weights it adapts, and the names are those of
            the model without it. Otherwise both are separate, under peft's names.
    """
    entries = model.model.state_dict(keep_vars=True)
    adapted = adapter.adapted_layers(model.model) if merged else {}
    shared = Counter(_sources(entries).values())
    tied: dict[str, Tensor] = {}
    for name, source in _sources(entries).items():
        if adapter.is_adapter_weight(name, adapted):
            continue
        if source in tied:
            value = tied[source]
        else:
            value = collectives.full_tensor(entries[name])
            layer = adapted.get(name.removesuffix(".base_layer.weight"))
            if layer is not None:
                value = value + adapter.delta(layer)
        if shared[source] > 1:
            tied[source] = value
        yield name.replace(".base_layer.", ".") if adapted else name, value


def _sources(entries: Mapping[str, Tensor]) -> dict[str, str]:
    """For each name the first name of the same tensor; tied weights share one."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in entries.items()}


@torch.no_grad()
def full_weights(model: PackedModel, *, merged: bool = True) -> dict[str, Tensor]:
    """Copies of all weights in main memory and float32 on rank 0; {} on the others.

    The live model is not touched, also where an adapter is merged.

    Args:
        merged: see :func:`iter_weights`. Only weights that came apart can be loaded again
            into a model with an adapter.
    """
    return _collected(model, iter_weights(model, merged=merged))


@torch.no_grad()
def trained_weights(model: PackedModel) -> dict[str, Tensor]:
    """As :func:`full_weights`, unmerged, but only what is trained.

    Together with the model that the run started from they restore the policy.
    """
    entries = model.model.state_dict(keep_vars=True)
    trained = ((n, collectives.full_tensor(t)) for n, t in entries.items() if t.requires_grad)
    return _collected(model, trained)


def _collected(model: PackedModel, weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    sources = _sources(model.model.state_dict(keep_vars=True))
    collected: dict[str, Tensor] = {}
    for name, tensor in weights:
        if not model.world.is_rank0:
            continue
        source = sources.get(name, name)
        if source in collected:
            collected[name] = collected[source]
        else:
            dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
            collected[name] = tensor.to("cpu", dtype, copy=True)
    return collected


@torch.no_grad()
def load_full_weights(model: PackedModel, tensors: Mapping[str, Tensor]) -> None:
    """Copy whole tensors into the model, in place; those of rank 0 count.

    Accepts the result of :func:`full_weights` (unmerged, if there is an adapter) or of
    :func:`trained_weights`, on any number of ranks.

    Raises:
        ConfigError: a name or shape is not the model's, or a trained weight is missing;
            on every rank alike, and before any weight has changed.
    """
    entries: dict[str, Tensor] = model.model.state_dict(keep_vars=True)
    world = model.world
    shapes = world.share({name: list(tensor.shape) for name, tensor in tensors.items()})
    _refuse_mismatch(entries, shapes)
    done: set[int] = set()
    for name, shape in shapes.items():
        target = entries[name]
        if id(target) in done:  # tied to one that was copied
            continue
        done.add(id(target))
        if world.is_rank0:
            value = tensors[name].to(world.device, target.dtype).contiguous()
        else:
            value = torch.empty(shape, dtype=target.dtype, device=world.device)
        collectives.set_full_tensor(target, world.broadcast_(value))


def _refuse_mismatch(entries: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> None:
    given = {id(entries[name]) for name in shapes if name in entries}
    wrong = [
        name
        for name, shape in shapes.items()
        if name not in entries or list(entries[name].shape) != shape
    ]
    missing = [n for n, t in entries.items() if t.requires_grad and id(t) not in given]
    if wrong or missing:
        raise ConfigError(
            "these weights are not those of the model that is trained:"
            f" {len(wrong)} of another name or shape {wrong[:3]}, {len(missing)} missing"
            f" {missing[:3]} (weights with a merged adapter do not fit one with an adapter)"
        )
