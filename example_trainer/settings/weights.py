"""How new weights reach the inference servers."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from atroposlib.utils.command import plugins
from example_trainer.settings.model import ModelSettings
from example_trainer.settings.run import OriginalSettings
from example_trainer.settings.section import Section

# Two correct implementations differ by about 1e-4 nats per token in float32 and a few
# hundredths in bfloat16; weights one version behind differ by more once they have moved.
PublisherName = Literal["disk", "lora", "distributed", "shared_memory", "node_disk"]
LOGPROB_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}


class WeightSettings(Section):
    """How new weights reach the inference servers."""

    weight_bridge_mode: Literal["none", "shared_vllm", "lora_only", "lora_restart"] = Field(
        "none",
        description="the original's name for weight_publisher: none is disk, shared_vllm is"
        " shared_memory, both lora modes are lora; nothing is restarted",
    )
    weight_publisher: PublisherName | str | None = Field(
        None,
        description="name in example_trainer.weights, or MODULE:CLASS, FILE.py:CLASS"
        " (default: by weight_bridge_mode)",
    )
    inference_urls: list[str] | None = Field(
        None,
        description="servers that get new weights (default: localhost:vllm_port); directory://"
        " takes those that announce themselves to the rollout API",
    )
    inference_min_ready: int = Field(
        1, ge=1, description="servers of the directory that a run waits for before it begins"
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
    keep_adapters: int = Field(
        0,
        ge=0,
        description="earlier adapters that vLLM and SGLang keep as NAME@VERSION, NAME being"
        " publish_adapter_name: opponents of environments",
    )
    keep_adapters_every: int = Field(
        1, ge=1, description="versions kept by keep_adapters are multiples of it"
    )
    publish_every: int = Field(1, ge=1, description="steps between published versions")
    keep_published: int = Field(2, ge=1, description="versions kept in publish_dir")
    publish_timeout_s: float = Field(
        300.0, gt=0, description="bound of each pause, reload and resume of a server"
    )
    publish_slow_s: float = Field(
        120.0,
        gt=0,
        description="how much longer than half of the servers one may take to load a version;"
        " then it is left out until it has the current one",
    )
    publish_pause: Literal["wait", "abort", "keep"] | None = Field(
        None,
        description="running requests at a publish: wait until they finish; abort: they return"
        " what they have and environments continue it with the new weights; keep: the server"
        " continues them itself (default: wait on our server, abort on vLLM and SGLang)",
    )
    server_timeout_s: float = Field(
        1200.0,
        gt=0,
        description="wait for an inference server at the start, and when none is left;"
        " then the run ends",
    )
    publish_group_address: str | None = Field(
        None,
        description="host:port where trainer and servers meet for distributed publishing"
        " (default: a free port on this host)",
    )
    publish_group_backend: Literal["nccl", "gloo"] | None = Field(
        None,
        description="of distributed publishing (default: nccl with a GPU each, else gloo)",
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
    check_every: int = Field(
        1,
        ge=1,
        description="steps between such checks; every batch is compared with its sampler",
    )
    max_logprob_mismatch: float | None = Field(
        None,
        gt=0,
        description="nats a server's logprob of a token may differ from the trainer's, except"
        " 1 % of them (default: 0.001 for float32; for bfloat16 the mean may be 2.5 times"
        " the one of the run so far, and 25 % of the tokens 0.2 apart)",
    )

    @field_validator("inference_urls", mode="before")
    @classmethod
    def _server_roots(cls, value: Any) -> Any:
        # Environments are configured with .../v1; the same URL must work here.
        return [str(url).rstrip("/").removesuffix("/v1") for url in value] if value else value

    @field_validator("weight_publisher")
    @classmethod
    def _is_known(cls, value: str | None) -> str | None:
        if value is None:
            return None
        return plugins.valid_name(plugins.PUBLISHER, value, get_args(PublisherName))

    @property
    def publisher(self) -> str:
        """Name of the weight publisher."""
        if self.weight_publisher is not None:
            return self.weight_publisher
        by_mode = {"none": "disk", "shared_vllm": "shared_memory"}
        return by_mode.get(self.weight_bridge_mode, "lora")


class ServingSettings(OriginalSettings, WeightSettings, ModelSettings):
    """The inference servers: where they are, and the model and adapter they serve."""

    @property
    def servers(self) -> list[str]:
        if self.inference_urls is not None:
            return self.inference_urls
        return [f"http://localhost:{self.vllm_port}"]

    @property
    def follows_directory(self) -> bool:
        """Whether the servers come from the rollout API's directory."""
        return self.servers[:1] == ["directory:"]  # slashes at the end are stripped

    @property
    def server_token(self) -> str | None:
        return self.inference_token or os.environ.get("ATROPOS_INFERENCE_TOKEN")

    @property
    def trains_adapter(self) -> bool:
        """Whether a LoRA adapter is trained instead of the weights."""
        return self.publisher == "lora" if self.lora is None else self.lora

    @property
    def published_lora_rank(self) -> int | None:
        """Rank of the adapter that is published; None if whole weights are."""
        return self.lora_r if self.publisher == "lora" else None

    @property
    def logprob_tolerance(self) -> float:
        return self.max_logprob_mismatch or LOGPROB_TOLERANCE[self.compute_dtype]
