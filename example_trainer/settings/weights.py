"""How new weights reach the inference servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from example_trainer.settings.section import Section


class WeightSettings(Section):
    """How new weights reach the inference servers."""

    weight_bridge_mode: Literal["none", "shared_vllm", "lora_only", "lora_restart"] = Field(
        "none",
        description="the original's name for weight_publisher: none is disk, shared_vllm is"
        " shared_memory, both lora modes are lora; nothing is restarted",
    )
    weight_publisher: Literal["disk", "lora", "distributed", "shared_memory"] | None = Field(
        None, description="name in example_trainer.weights (default: by weight_bridge_mode)"
    )
    inference_urls: list[str] | None = Field(
        None, description="servers that get new weights (default: localhost:vllm_port)"
    )
    inference_engine: Literal["auto", "local", "vllm", "sglang"] = Field(
        "auto", description="protocol of the servers; auto asks each"
    )
    inference_token: str | None = Field(
        None,
        description="bearer token of the servers (default: ATROPOS_INFERENCE_TOKEN)",
    )
    publish_dir: str | None = Field(
        None,
        description="new versions are written here; every server must see it"
        " (default: save_path/published)",
    )
    publish_adapter_name: str | None = Field(
        None,
        description="name of the adapter on servers that only give it to requests that ask"
        " for it (vLLM, SGLang); environments must then ask for this model",
    )
    publish_every: int = Field(1, ge=1, description="steps between published versions")
    keep_published: int = Field(2, ge=1, description="versions kept in publish_dir")
    publish_timeout_s: float = Field(
        300.0, gt=0, description="bound of each pause, reload and resume of a server"
    )
    publish_group_address: str | None = Field(
        None,
        description="host:port where trainer and servers meet for distributed publishing"
        " (default: a free port on this host)",
    )
    publish_group_backend: Literal["nccl", "gloo"] | None = Field(
        None, description="of distributed publishing (default: nccl on CUDA, else gloo)"
    )
    publish_bucket_mb: int = Field(
        1024, ge=1, description="weights sent per message of distributed publishing"
    )
    untie_published_head: bool | None = Field(
        None,
        description="publish a tied model with a separate output head"
        " (default: when a server is vLLM without our worker extension, which can keep the"
        " old head)",
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

    @field_validator("inference_urls", mode="before")
    @classmethod
    def _server_roots(cls, value: Any) -> Any:
        # Environments are configured with .../v1; the same URL must work here.
        return [str(url).rstrip("/").removesuffix("/v1") for url in value] if value else value

    @property
    def publisher(self) -> str:
        """Name of the weight publisher."""
        if self.weight_publisher is not None:
            return self.weight_publisher
        by_mode = {"none": "disk", "shared_vllm": "shared_memory"}
        return by_mode.get(self.weight_bridge_mode, "lora")


def published_directory(publish_dir: str | None, save_path: str) -> Path:
    return Path(publish_dir or Path(save_path) / "published")
