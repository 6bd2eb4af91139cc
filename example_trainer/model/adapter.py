"""LoRA adapters (peft): train two thin matrices per weight instead of the weight.

W x becomes W x + (alpha / r) B A x with A (r, in) and B (out, r); B starts at zero, so an
untrained adapter changes nothing (Hu et al. 2021, arXiv 2106.09685, eq. 3).

The adapter is injected into the transformers model, which keeps its class: the
policy is packed, scored and sharded as without it. Dropout stays off, see ``lora_dropout``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from atroposlib.errors import ConfigError
from example_trainer.distributed import collectives
from example_trainer.model.policy import PackedModel
from example_trainer.settings.model import ModelSettings

ADAPTER = "default"  # peft's own name for the only adapter of a model
ALL_LINEAR = "all-linear"  # peft's word for every linear layer but the output head
WEIGHTS_FILE = "adapter_model.safetensors"

Model = TypeVar("Model", bound=nn.Module)


def wrap(model: Model, settings: ModelSettings) -> Model:
    """Put an untrained adapter into a transformers model, in place; only it trains.

    Every rank makes the same adapter: its start is drawn from ``settings.seed`` alone.

    Raises:
        ConfigError: peft is missing, or the settings name no linear layer of this model.
    """
    if settings.train_layer_indices or settings.freeze:
        raise ConfigError(
            "train_layer_indices and freeze choose weights of the model, lora trains an adapter"
            " only; choose its layers by lora_layer_indices"
        )
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("lora needs peft: pip install 'atropos-rl[lora]'") from error
    plain: Any = model
    targets = settings.lora_target_modules or ["q_proj", "v_proj"]
    layers = plain.config.get_text_config().num_hidden_layers
    if beyond := [i for i in settings.lora_layer_indices or () if i >= layers]:
        raise ConfigError(f"lora_layer_indices {beyond}: the model has layers 0-{layers - 1}")
    _refuse_modules(plain, targets)
    lora_config = LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=0.0,
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets,
        layers_to_transform=settings.lora_layer_indices,
        base_model_name_or_path=settings.model_name,
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(lora_config, plain, ADAPTER)
    except ValueError as error:  # no module of that name
        raise ConfigError(f"lora_target_modules: {error}") from error
    start_adapter(model, settings.seed)
    return model


@torch.no_grad()
def start_adapter(model: nn.Module, seed: int) -> None:
    """Untrained values, of the same draws for any number of ranks; none on the meta device."""
    generator = torch.Generator().manual_seed(seed)
    for layer in adapted_layers(model).values():
        a = layer.lora_A[ADAPTER].weight  # (r, in)
        if not a.is_meta:
            drawn = torch.empty(a.shape).uniform_(-1, 1, generator=generator)
            collectives.set_full_tensor(a, drawn / a.shape[1] ** 0.5)
            layer.lora_B[ADAPTER].weight.zero_()


def _refuse_modules(model: Any, targets: Sequence[str]) -> None:
    """Only weights inside the decoder layers: the trainer scores by a plain output head."""
    for name, module in model.named_modules():
        if not any(name == target or name.endswith(f".{target}") for target in targets):
            continue
        if module is model.get_output_embeddings():
            raise ConfigError(f"lora_target_modules: {name} is the output head; leave it out")
        if not isinstance(module, nn.Linear) and type(module).__name__ != "Conv1D":
            raise ConfigError(f"lora_target_modules: {name} is not a linear layer")


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """peft's layers with an adapter, by the name of the module they replaced."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and hasattr(module, "base_layer")
    }


def delta(layer: Any) -> Tensor:
    """(out, in) what the adapter adds to its weight: scale x B A. Collective."""
    a = collectives.full_tensor(layer.lora_A[ADAPTER].weight)  # (r, in)
    b = collectives.full_tensor(layer.lora_B[ADAPTER].weight)  # (out, r)
    added: Tensor = (b @ a) * layer.scaling[ADAPTER]
    return added.T if layer.fan_in_fan_out else added


def write_adapter(policy: PackedModel, tensors: dict[str, Tensor], directory: Path) -> None:
    """Write the result of ``state_dict.adapter_weights`` as peft does, for peft, vLLM and SGLang to load.

    That is ``adapter_config.json`` and ``adapter_model.safetensors`` in ``directory``.
    """
    from safetensors.torch import save_file

    settings = copy.copy(policy.model.peft_config[ADAPTER])
    settings.inference_mode = True
    settings.save_pretrained(str(directory))
    save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
