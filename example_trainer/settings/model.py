"""Settings of the model, its precision and its device."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from atroposlib.errors import ConfigError
from atroposlib.utils.tokenizers.loading import local_model
from example_trainer.settings.section import Section


class ModelSettings(Section):
    """The model to train, its precision, and its devices."""

    model_name: Annotated[str, AfterValidator(local_model)] = Field(
        description="directory or hub name of the model to train, or smollm2 (of the quickstart)"
    )
    init_from_scratch: bool = Field(
        False, description="random weights of the model's shape instead of its own"
    )
    seq_len: int = Field(2048, ge=2, description="tokens of prompt and completion, at most")
    dtype: Literal["bfloat16", "float32"] | None = Field(
        None,
        description="of the forward pass and of published weights; the optimizer keeps float32"
        " (default: bfloat16 on CUDA, else float32)",
    )
    device: str = Field("auto", description="auto, cuda, cuda:1, cpu")
    gradient_checkpointing: bool | None = Field(
        None, description="recompute activations to save memory (default: on CUDA)"
    )
    cpu_offload: bool = Field(
        False,
        description="keep parameters, gradients and optimizer state in main memory (CUDA)",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="ranks that share the matrices of each layer and compute the same rows;"
        " the others share the rows",
    )
    seed: int = Field(0, description="of every random number the trainer draws")
    train_layer_indices: list[int] | None = Field(
        None, description="train these decoder layers only, such as 20-31 or 0-3,28-31"
    )

    freeze: list[str] | None = Field(
        None,
        description="train no weight whose name matches one of these patterns, such as"
        " *vision_tower* (* stands for any text)",
    )

    # --- adapters (peft) --------------------------------------------------------------
    lora: bool | None = Field(
        None,
        description="train a LoRA adapter instead of the weights"
        " (default: when weight_bridge_mode is lora_only or lora_restart)",
    )
    lora_r: int = Field(16, ge=1, description="rank of the adapter")
    lora_alpha: int = Field(
        32, ge=1, description="scale of the adapter is lora_alpha / lora_r"
    )
    lora_dropout: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="accepted for the original's sake; the adapter trains without dropout,"
        " whose noise would make the trainer another policy than the sampler",
    )
    lora_target_modules: list[str] | None = Field(
        None, description="modules that get an adapter (default: q_proj and v_proj)"
    )
    lora_layer_indices: list[int] | None = Field(
        None, description="decoder layers that get an adapter (default: all)"
    )

    @field_validator("train_layer_indices", "lora_layer_indices", mode="before")
    @classmethod
    def _layers(cls, value: Any) -> Any:
        return parse_layers(value) if isinstance(value, str) else value

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def compute_dtype(self) -> Literal["bfloat16", "float32"]:
        return self.dtype or ("bfloat16" if self.on_cuda else "float32")

    @property
    def trains_adapter(self) -> bool:
        """Whether a LoRA adapter is trained instead of the weights."""
        return bool(self.lora)


def parse_layers(text: str) -> list[int]:
    """Layer numbers from "20-31", "0-3,28-31" or "0,5,7"; raises ConfigError for anything else."""
    layers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"layer indices look like 0-3,28-31 or 0,5,7, not {text!r}")
        layers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(layers)
