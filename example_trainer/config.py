"""Every setting of the trainer.

Settings of the original trainer keep their names and defaults. Those that belong to a way
of running that does not exist yet are refused when they are set, never ignored.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from atroposlib.errors import ConfigError

# Two correct implementations differ by about 1e-4 nats per token in float32 and a few
# hundredths in bfloat16; weights one version behind differ by more once they have moved.
LOGPROB_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}

# Settings of the original trainer that only mean something in a mode not built yet.
NOT_AVAILABLE_YET = {
    "vllm_gpu": "starting vLLM from the trainer",
    "vllm_gpu_memory_utilization": "starting vLLM from the trainer",
    "max_model_len": "starting vLLM from the trainer",
    "vllm_config_path": "weight_bridge_mode shared_vllm",
    "single_copy": "weight_bridge_mode shared_vllm",
    "debug_loading": "weight_bridge_mode shared_vllm",
    "train_layer_indices": "training a subset of layers",
    "lora_r": "LoRA training",
    "lora_alpha": "LoRA training",
    "lora_dropout": "LoRA training",
    "lora_target_modules": "LoRA training",
    "lora_layer_indices": "LoRA training",
    "trainer_rank": "training on several ranks",
    "world_size": "training on several ranks",
    "init_method": "training on several ranks",
    "num_inference_nodes": "training on several ranks",
}


class TrainingConfig(BaseModel):
    """Settings of one training run; each is also a flag (``--batch-size``).

    Sequences per optimizer step = batch_size x gradient_accumulation_steps.

    Raises:
        ConfigError: a setting belongs to a mode that is not available yet.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    # --- model and data -------------------------------------------------------------
    model_name: str = Field(description="directory or hub name of the model to train")
    seq_len: int = Field(2048, ge=2, description="tokens of prompt and completion, at most")
    batch_size: int = Field(
        2,
        ge=1,
        description="sequences per forward pass if none shared a prefix: bounds memory",
    )
    gradient_accumulation_steps: int = Field(
        32, ge=1, description="forward passes per step, in units of batch_size sequences"
    )
    training_steps: int = Field(10, ge=1, description="optimizer steps until the trainer ends")
    dtype: Literal["bfloat16", "float32"] | None = Field(
        None,
        description="of the forward pass and of published weights; the optimizer keeps float32"
        " (default: bfloat16 on CUDA, else float32)",
    )
    device: str = Field("auto", description="auto, cuda, cuda:1, cpu")
    gradient_checkpointing: bool | None = Field(
        None, description="recompute activations to save memory (default: on CUDA)"
    )
    seed: int = Field(0, description="of every random number the trainer draws")

    # --- optimizer ------------------------------------------------------------------
    optimizer: Literal["adamw", "adamw_8bit", "adafactor"] = Field(
        "adamw_8bit", description="adamw_8bit needs bitsandbytes, else it is adamw"
    )
    lr: float = Field(1e-5, gt=0, description="learning rate after the warm-up")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    lr_decay_share: float = Field(
        0.0, ge=0, le=1, description="last share of the steps, in which lr falls linearly to 0"
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="decay of the second moment")
    adam_eps: float = Field(1e-8, gt=0, description="floor of the denominator of Adam")
    weight_decay: float = Field(0.01, ge=0, description="decoupled weight decay")
    max_grad_norm: float = Field(
        1.0, gt=0, description="clip the global gradient norm to this"
    )
    adafactor_scale_parameter: bool = Field(False, description="scale steps by weight size")
    adafactor_relative_step: bool = Field(False, description="Adafactor's own step size")

    # --- loss -----------------------------------------------------------------------
    loss: str = Field("grpo", description="name in example_trainer.losses")
    clip_eps: float = Field(0.2, gt=0, description="ratio may fall to 1 - clip_eps")
    clip_eps_high: float | None = Field(
        None, gt=0, description="ratio may rise to 1 + clip_eps_high (default: clip_eps)"
    )
    epochs_per_batch: int = Field(
        1, ge=1, description="optimizer steps on each batch; the clip bounds how far they go"
    )
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    loss_aggregation: Literal["token", "sequence"] = Field(
        "token", description="each token of the batch, or each sequence, counts the same"
    )

    # --- the rollout API ------------------------------------------------------------
    atropos_url: str = Field("http://localhost:8000", description="rollout API")
    lease_s: float = Field(
        3600.0, gt=0, description="a batch not acked within this may be trained by another"
    )
    batch_timeout_s: float = Field(
        3600.0, gt=0, description="give up when no batch can be formed for this long"
    )

    # --- inference servers ----------------------------------------------------------
    weight_bridge_mode: Literal["none", "shared_vllm", "lora_only", "lora_restart"] = Field(
        "none", description="none: whole weights by disk to servers that keep running"
    )
    weight_publisher: str = Field("disk", description="name in example_trainer.weights")
    inference_urls: list[str] | None = Field(
        None, description="servers that get new weights (default: localhost:vllm_port)"
    )
    inference_engine: Literal["auto", "local", "vllm", "sglang"] = Field(
        "auto", description="protocol of the servers; auto asks each"
    )
    publish_dir: str | None = Field(
        None,
        description="new versions are written here; every server must see it"
        " (default: save_path/published)",
    )
    publish_every: int = Field(1, ge=1, description="steps between published versions")
    keep_published: int = Field(2, ge=1, description="versions kept in publish_dir")
    publish_timeout_s: float = Field(
        300.0, gt=0, description="bound of each pause, reload and resume of a server"
    )
    untie_published_head: bool | None = Field(
        None,
        description="publish a tied model with an output head of its own"
        " (default: when a server is vLLM, which can keep the old head)",
    )
    check_rows: int = Field(
        4, ge=0, description="rows scored on every server after a publish; 0: no check"
    )
    max_logprob_mismatch: float | None = Field(
        None,
        gt=0,
        description="nats a server's logprob of a token may differ from the trainer's"
        " (default: 0.001 for float32, 0.2 for bfloat16)",
    )

    # --- output ---------------------------------------------------------------------
    save_path: str = Field("trained_model_checkpoints", description="checkpoints go here")
    checkpoint_interval: int = Field(
        3, ge=0, description="steps between checkpoints; 0: only the final model"
    )
    log_dir: str = Field("./logs", description="metrics.jsonl goes here")
    metrics_path: str | None = Field(
        None, description="one JSON line per step (default: log_dir/metrics.jsonl)"
    )
    benchmark: bool = Field(False, description="print mean seconds of every phase at the end")
    use_wandb: bool = Field(False, description="also log to Weights & Biases")
    wandb_project: str | None = Field(None, description="project in Weights & Biases")
    wandb_group: str | None = Field(None, description="group (default: 8 random characters)")

    # --- settings of the original trainer for modes that are not available yet --------
    vllm_port: int = Field(9001, ge=1, le=65535, description="port of the default server URL")
    vllm_restart_interval: int = Field(
        3, ge=1, description="older name of publish_every; used when that one is not given"
    )
    vllm_gpu: int | None = Field(None, description="not available yet")
    vllm_gpu_memory_utilization: float = Field(0.45, description="not available yet")
    max_model_len: int = Field(4096, description="not available yet")
    vllm_config_path: str | None = Field(None, description="not available yet")
    single_copy: bool = Field(False, description="not available yet")
    debug_loading: bool = Field(False, description="not available yet")
    train_layer_indices: list[int] | None = Field(None, description="not available yet")
    lora_r: int = Field(16, description="not available yet")
    lora_alpha: int = Field(32, description="not available yet")
    lora_dropout: float = Field(0.05, description="not available yet")
    lora_target_modules: list[str] | None = Field(None, description="not available yet")
    lora_layer_indices: list[int] | None = Field(None, description="not available yet")
    trainer_rank: int = Field(0, description="not available yet")
    world_size: int = Field(1, description="not available yet")
    init_method: str = Field("env://", description="not available yet")
    num_inference_nodes: int = Field(0, description="not available yet")

    @field_validator("train_layer_indices", "lora_layer_indices", mode="before")
    @classmethod
    def _layers(cls, value: Any) -> Any:
        return parse_layers(value) if isinstance(value, str) else value

    @field_validator("inference_urls", mode="before")
    @classmethod
    def _server_roots(cls, value: Any) -> Any:
        # Environments are configured with .../v1; the same URL must work here.
        return [str(url).rstrip("/").removesuffix("/v1") for url in value] if value else value

    # Not a validator: pydantic would wrap the ConfigError in a ValidationError.
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._refuse_what_does_not_exist()
        given = self.model_fields_set
        if "vllm_restart_interval" in given and "publish_every" not in given:
            self.publish_every = self.vllm_restart_interval
        if self.wandb_group is None and self.use_wandb:
            self.wandb_group = secrets.token_hex(4)

    def _refuse_what_does_not_exist(self) -> None:
        if self.weight_bridge_mode != "none":
            raise ConfigError(
                f"weight_bridge_mode {self.weight_bridge_mode} is not available yet;"
                " use none, which publishes to running servers by disk"
            )
        for name in sorted(self.model_fields_set & NOT_AVAILABLE_YET.keys()):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError(
                    f"{name} is for {NOT_AVAILABLE_YET[name]}, which is not available yet;"
                    " leave it out"
                )

    @property
    def sequences_per_step(self) -> int:
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def max_tokens_per_pass(self) -> int:
        """Padded tokens of one forward pass: no more than batch_size plain rows have."""
        return self.batch_size * self.seq_len

    @property
    def servers(self) -> list[str]:
        if self.inference_urls is not None:
            return self.inference_urls
        return [f"http://localhost:{self.vllm_port}"]

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def compute_dtype(self) -> Literal["bfloat16", "float32"]:
        return self.dtype or ("bfloat16" if self.on_cuda else "float32")

    @property
    def logprob_tolerance(self) -> float:
        return self.max_logprob_mismatch or LOGPROB_TOLERANCE[self.compute_dtype]

    @property
    def published(self) -> Path:
        return Path(self.publish_dir or Path(self.save_path) / "published")

    @property
    def metrics_file(self) -> Path:
        return Path(self.metrics_path or Path(self.log_dir) / "metrics.jsonl")


def parse_layers(text: str) -> list[int]:
    """Layer numbers from "20-31", "0-3,28-31" or "0,5,7".

    Raises:
        ConfigError: the text is none of these.
    """
    layers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"layer indices look like 0-3,28-31 or 0,5,7, not {text!r}")
        layers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(layers)
