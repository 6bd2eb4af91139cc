"""Settings of an environment's teacher: where it is served, and what is asked of it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

POLICY = "policy"  # base_url of the servers of the trained model


class TeacherSettings(BaseModel):
    """A model on a server whose logprobs of the sampled tokens go with every group.

    Example: TeacherSettings(base_url="http://localhost:9010/v1", top_k=16)
    """

    model_config = ConfigDict(extra="forbid")

    base_url: str | list[str] = Field(
        description="address of the teacher's server, or of several with the same model, such as"
        " http://localhost:9010/v1, or file:///path of a file that holds it; in the file of a run"
        " the name of one of its teachers; policy: the servers of the trained model"
    )
    model: str = Field(
        "default", description="name of the model on the server; default: the only one there"
    )
    top_k: int = Field(
        0,
        ge=0,
        description="likeliest tokens at each position, for the losses distillation and jsd;"
        " 0: the sampled token only, for the loss reverse_kl",
    )
    server_type: Literal["vllm", "sglang"] = Field(
        "vllm", description="protocol of the server; vllm: also of atropos infer"
    )
    tokenizer: str | None = Field(
        None, description="directory or hub name (default: what the server names)"
    )
    timeout_s: float = Field(
        600.0,
        gt=0,
        description="seconds to wait for the logprobs of a group; then the environment ends, and"
        " its next life goes on with the samples of its journal",
    )
    requests_at_once: int = Field(
        64, ge=1, description="sequences in flight to each of its servers"
    )
    api_key: SecretStr = Field(SecretStr(""), description="bearer token; empty sends none")

    @property
    def is_policy(self) -> bool:
        """Whether the trained model is its own teacher."""
        return self.base_url == POLICY

    @property
    def urls(self) -> list[str]:
        return [self.base_url] if isinstance(self.base_url, str) else self.base_url
