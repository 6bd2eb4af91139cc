"""Fill a sharded model with its weights; no rank ever has it whole on its device.

    parameters on meta -> fully_shard -> each rank reads its rows of every saved tensor

Where the model's tensors differ from its files' (random weights, experts saved separately,
other names) rank 0 loads it in main memory and sends it tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor, nn

from example_trainer.distributed import collectives
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.scoring import VALUE_HEADS

HEADS = set(VALUE_HEADS)  # may be new
FILES = "model.safetensors", "model-*-of-*.safetensors"


def without_weights(build: Callable[[], Any]) -> Any:
    """The transformers model that is built, without memory for parameters and saved buffers."""
    with torch.device("meta"):
        model = build()
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            if (buffer := module._buffers[name]) is not None:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
        module._is_hf_initialized = False  # or their values are not computed
    model.initialize_weights()
    return model


@torch.no_grad()
def fill(
    model: nn.Module,
    world: Ranks,
    place: torch.device,
    saved_as: str | None,
    whole: Callable[[], tuple[Any, set[str]]],
) -> set[str]:
    """Give the shards of a model memory and weights. Collective.

    Args:
        place: of the shards; buffers lie on the rank's device.
        saved_as: name of the model with these weights; None: it is not saved.
        whole: the model in main memory, and which of its direct modules lack a saved weight.

    Returns:
        The direct modules that lack a saved weight.
    """
    _allocate(model, world.device, place)
    targets = {
        name.replace(".base_layer.", "."): target
        for name, target in model.state_dict(keep_vars=True).items()
        if ".lora_" not in name
    }
    files = _saved_files(model, saved_as, targets) if saved_as else {}
    filled = {id(targets[name]) for name in files}  # tied weights are the same tensor
    absent = {n.split(".")[0] for n, target in targets.items() if id(target) not in filled}
    if absent <= HEADS:
        for name, file in files.items():
            with safe_open(file, framework="pt") as reader:
                scalar = targets[name].ndim == 0
                value = reader.get_tensor(name) if scalar else reader.get_slice(name)
                collectives.set_full_tensor(targets[name], value)
        return absent
    source, unsaved = whole() if world.is_rank0 else (None, set[str]())
    tensors = source.state_dict() if source is not None else {}
    for name, target in targets.items():
        value = torch.empty(target.shape, dtype=target.dtype, device=world.device)
        if world.is_rank0:
            value.copy_(tensors[name])
        collectives.set_full_tensor(target, world.broadcast_(value))
    return set(world.share(sorted(unsaved)))


def _allocate(model: nn.Module, device: torch.device, place: torch.device) -> None:
    made: dict[nn.Parameter, nn.Parameter] = {}  # tied weights stay tied
    for module in model.modules():
        for name, shape in module._parameters.items():
            if shape is not None and shape not in made:
                empty = torch.empty_like(shape, device=place)
                made[shape] = nn.Parameter(empty, requires_grad=shape.requires_grad)
            module._parameters[name] = None if shape is None else made[shape]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                at_rank = torch.empty_like(buffer, device=device)
                module._buffers[name] = at_rank if buffer.is_meta else buffer.to(device)


def _saved_files(model: Any, name: str, targets: Mapping[str, Tensor]) -> dict[str, Path]:
    """Files of the targets; none if a shape differs or transformers converts tensors on loading."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    if any(
        isinstance(mapping, WeightConverter) for mapping in get_model_conversion_mapping(model)
    ):
        return {}
    local = Path(name).is_dir()
    directory = Path(name if local else snapshot_download(name, allow_patterns=[*FILES]))
    files: dict[str, Path] = {}
    for file in (file for pattern in FILES for file in directory.glob(pattern)):
        with safe_open(file, framework="pt") as reader:
            for key in targets.keys() & reader.keys():
                if list(targets[key].shape) != reader.get_slice(key).get_shape():
                    return {}
                files.setdefault(key, file)
    return files
