"""Settings of the original's ways of starting vLLM and of its ranks."""

from __future__ import annotations

from pydantic import BaseModel, Field


class OriginalSettings(BaseModel):
    vllm_port: int = Field(9001, ge=1, le=65535, description="port of the default server URL")
    vllm_restart_interval: int = Field(
        3, ge=1, description="older name of publish_every; used when that one is not given"
    )
    vllm_gpu: int | None = Field(
        None, ge=0, description="GPU of the server that atropos-grpo-run starts"
    )
    vllm_gpu_memory_utilization: float = Field(
        0.45, gt=0, le=1, description="share of its memory, for atropos-grpo-run"
    )
    max_model_len: int = Field(4096, ge=2, description="of that server, in tokens")
    vllm_config_path: str | None = Field(
        None, description="where shared_memory publishing describes its tensors"
    )
    single_copy: bool = Field(
        False, description="had no effect in the original; refused if set"
    )
    debug_loading: bool = Field(
        False, description="print every published tensor and its shape"
    )
    trainer_rank: int = Field(
        0, ge=0, description="rank of this process; under torchrun its RANK counts"
    )
    world_size: int = Field(
        1, ge=1, description="trainer processes; under torchrun its WORLD_SIZE counts"
    )
    init_method: str = Field(
        "env://", description="where ranks meet, as torch.distributed says"
    )
    num_inference_nodes: int = Field(
        0,
        ge=0,
        description="accepted for the original's sake, which did not use it either; servers are"
        " named by inference_urls, or started by atropos-launch",
    )
