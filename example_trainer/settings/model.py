"""Which model is trained, in which precision, and on what."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from example_trainer.settings.layers import parse_layers


class ModelSettings(BaseModel):
    model_name: str = Field(description="directory or hub name of the model to train")
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
    seed: int = Field(0, description="of every random number the trainer draws")
    train_layer_indices: list[int] | None = Field(
        None, description="train these decoder layers only, such as 20-31 or 0-3,28-31"
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
