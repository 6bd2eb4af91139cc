"""Sections of a plan about servers: of the trained model, and of teachers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from example_trainer.settings.section import PlanSection


class ServerSection(PlanSection):
    """Settings that inference servers and teachers have in common."""

    engine: Literal["auto", "local", "vllm", "sglang"] = Field(
        "auto", description="auto: vllm where it is installed, else the local server"
    )
    port: int = Field(0, ge=0, le=65535, description="0: any free one")
    tensor_parallel: int = Field(1, ge=1, description="GPUs of each server")
    first_gpu: int | None = Field(
        None,
        ge=0,
        description="servers of a local run take the GPUs from this one on (default: the first"
        " free ones)",
    )
    memory_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="of each GPU (default: the engine's, or 0.4 of one that the trainer uses too)",
    )
    float32_head: bool | None = Field(
        None,
        description="logits in float32, whose rounding to bfloat16 is most of the distance to the"
        " trainer (default: vllm; sglang converts its whole head in each step for it)",
    )
    max_model_len: int | None = Field(None, ge=2, description="tokens of prompt and answer")
    dtype: str | None = Field(None, description="of the products (default: the engine's)")
    python: str | None = Field(
        None,
        description="interpreter of an environment with the engine, perhaps without this package:"
        " weights then go through the disk (default: the launcher's)",
    )
    ready_within_s: float = Field(900.0, gt=0, description="bound of the start")
    args: list[str] = Field([], description="more arguments of each server")
    env: dict[str, str] = Field({}, description="environment variables")


class InferenceSection(ServerSection):
    """Inference servers, all alike."""

    count: int = Field(1, ge=1, description="servers")
    min_ready: int | None = Field(
        None,
        ge=1,
        description="servers that a run waits for before it begins (default: count)",
    )
    model: str | None = Field(
        None, description="what they start with (default: the trainer's)"
    )
    port: int = Field(
        0, ge=0, le=65535, description="of the first server, the others follow; 0: any free"
    )


class TeacherSection(ServerSection):
    """A server whose weights never change; environments name it in env.teacher.base_url."""

    model: str = Field(description="directory or hub name")
