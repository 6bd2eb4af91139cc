"""Whole weights of a sharded model: gather, merge an adapter, load, export.

Names are as in the transformers model's ``state_dict``; tied weights appear under each
of their names. Every function is collective: all ranks call it, in the same order, and
rank 0 passes or gets the tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from example_trainer.distributed import collectives
from example_trainer.distributed.collectives import Sliceable
from example_trainer.model import adapter
from example_trainer.model.policy import PackedModel
from example_trainer.model.scoring import inner_model


def iter_weights(model: PackedModel) -> Iterator[tuple[str, Tensor]]:
    """Names and whole tensors in turn, on the device and in the stored precision.

    An adapter is added to the weights it adapts, and the names are as in the model without
    it. No rank ever holds the whole model.
    """
    entries = model.model.state_dict(keep_vars=True)
    adapted = adapter.adapted_layers(model.model)
    shared = Counter(_sources(entries).values())
    tied: dict[str, Tensor] = {}
    for name, source in _sources(entries).items():
        if ".lora_" in name and name.partition(".lora_")[0] in adapted:
            continue  # a matrix of an adapter
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
    """For each name the first name of the same tensor; tied weights share a name."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in entries.items()}


@torch.no_grad()
def full_weights(model: PackedModel, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Copies of all weights, an adapter merged, in main memory; only on rank 0.

    Each is cast to ``dtype`` when it comes: there is no whole copy in another precision.
    """
    return _collect(model, iter_weights(model), dtype)


@torch.no_grad()
def trained_weights(model: PackedModel) -> dict[str, Tensor]:
    """Copies of the trained weights only, an adapter unmerged; see :func:`full_weights`.

    Together with the model that the run started from they restore the policy.
    """
    entries = model.model.state_dict(keep_vars=True)
    trained = ((n, collectives.full_tensor(t)) for n, t in entries.items() if t.requires_grad)
    return _collect(model, trained, torch.float32)


def trained_shards(model: PackedModel) -> dict[str, Tensor]:
    """Trained tensors, as this rank holds each; tied weights under their first name."""
    entries = model.model.state_dict(keep_vars=True)
    sources = _sources(entries)
    return {
        name: tensor.detach()
        for name, tensor in entries.items()
        if tensor.requires_grad and sources[name] == name
    }


def adapter_weights(model: PackedModel) -> dict[str, Tensor]:
    """The :func:`trained_weights` of an adapter under peft's names; ConfigError without it."""
    if not adapter.adapted_layers(model.model):
        raise ConfigError("there is no adapter to save: set lora")
    trained = trained_weights(model).items()
    inner = f".{adapter.ADAPTER}."
    return {f"base_model.model.{name.replace(inner, '.')}": tensor for name, tensor in trained}


def _collect(
    model: PackedModel, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype
) -> dict[str, Tensor]:
    sources = _sources(model.model.state_dict(keep_vars=True))
    collected: dict[str, Tensor] = {}
    for name, tensor in weights:
        if not model.world.is_rank0:
            continue
        source = sources.get(name, name)
        if source in collected:
            collected[name] = collected[source]
        else:
            its_dtype = dtype if tensor.is_floating_point() else tensor.dtype
            collected[name] = tensor.to("cpu", its_dtype, copy=True)
    return collected


@torch.no_grad()
def load_full_weights(
    model: PackedModel, tensors: Mapping[str, Sliceable], *, everywhere: bool = False
) -> None:
    """Copy :func:`trained_weights` or all weights into the model. Collective.

    Args:
        everywhere: every rank passes all tensors and reads its part. Otherwise the tensors
            of rank 0 are broadcast in turn.

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
        if id(target) in done:  # tied to a copied tensor
            continue
        done.add(id(target))
        if everywhere:
            collectives.set_full_tensor(target, tensors[name])
            continue
        if world.is_rank0:
            value = tensors[name][()].to(world.device, target.dtype).contiguous()
        else:
            value = torch.empty(shape, dtype=target.dtype, device=world.device)
        collectives.set_full_tensor(target, world.broadcast_(value))


def _refuse_mismatch(entries: Mapping[str, Tensor], shapes: Mapping[str, list[int]]) -> None:
    ids = {id(entries[name]) for name in shapes if name in entries}
    wrong = [
        name
        for name, shape in shapes.items()
        if name not in entries or list(entries[name].shape) != shape
    ]
    missing = [n for n, t in entries.items() if t.requires_grad and id(t) not in ids]
    if wrong or missing:
        raise ConfigError(
            "these weights are not those of the model that is trained:"
            f" {len(wrong)} of another name or shape {wrong[:3]}, {len(missing)} missing"
            f" {missing[:3]} (weights with a merged adapter do not fit one with an adapter)"
        )


# --- weights for inference engines ----------------------------------------------------


def tied_heads(model: Any) -> tuple[str, list[str]]:
    """The name of the input embedding, and the names of an output head tied to it."""
    weight = model.get_input_embeddings().weight
    parameters = model.named_parameters(remove_duplicate=False)
    names = [name for name, parameter in parameters if parameter is weight]
    embedding = next((name for name in names if "embed" in name), names[0])
    return embedding, [name for name in names if name != embedding]


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype and shape of a tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@torch.no_grad()
def export_weights(policy: PackedModel, *, untie_head: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield name and whole tensor in the compute dtype, adapter merged, on the device.

    Collective: every rank must consume all tensors.

    Args:
        untie_head: a tied output head comes as a separate tensor, else not at all.
    """
    left_out = [] if untie_head else tied_heads(inner_model(policy.model))[1]
    for name, tensor in iter_weights(policy):
        if name in left_out:
            continue
        floating = tensor.is_floating_point()
        yield name, tensor.to(policy.compute_dtype) if floating else tensor


def layout(policy: PackedModel, *, untie_head: bool) -> list[TensorSpec]:
    """Return the specs that :func:`export_weights` yields, in its order. Collective."""
    return [
        TensorSpec(name, tensor.dtype, tuple(tensor.shape))
        for name, tensor in export_weights(policy, untie_head=untie_head)
    ]
