"""Settings of batches and packing, and settings that a model is loaded with."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from example_trainer.settings.model import ModelSettings
from example_trainer.settings.section import Section


class StepSettings(Section):
    """How many sequences make a step, and how they are cut into micro-batches."""

    batch_size: int = Field(
        2,
        ge=1,
        description="with gradient_accumulation_steps: sequences (of a file: lines) per step;"
        " with seq_len: tokens of a forward pass where max_tokens_per_microbatch is not set",
    )
    gradient_accumulation_steps: int = Field(
        32, ge=1, description="sequences (of a file: lines) per step in units of batch_size"
    )
    max_tokens_per_microbatch: int | None = Field(
        None,
        ge=2,
        description="token budget of one forward pass on each rank"
        " (default: batch_size x seq_len); bounds memory, never changes the step",
    )
    packing: Literal["packed", "padded"] = Field(
        "packed",
        description="packed: rows end to end, no padding; padded: one row per line,"
        " for models whose attention cannot be packed (found out at the start)",
    )
    share_prefixes: bool = Field(
        True, description="compute beginnings that rows share once, where it pays"
    )

    @property
    def sequences_per_step(self) -> int:
        return self.batch_size * self.gradient_accumulation_steps


class BatchSettings(StepSettings):
    """How many sequences make a step, and how they are cut into minibatches and micro-batches."""

    training_steps: int = Field(10, ge=1, description="batches until the trainer ends")
    steps_per_epoch: int | None = Field(
        None, ge=1, description="batches that count as an epoch, for the epochs settings"
    )
    minibatches: int = Field(
        1,
        ge=1,
        description="optimizer steps per batch, each on another part of it"
        " (ppo_n_minibatches); advantages and proximal logprobs are made once before",
    )
    ppo_epochs: int = Field(
        1,
        ge=1,
        description="times each batch is gone through; the clip bounds how far it goes",
    )
    prefetch: bool = Field(
        True, description="fetch the next batch while the step runs; false: one at a time"
    )
    router_replay: bool = Field(
        False,
        description="the experts of a mixture of experts are those that sampled the tokens,"
        " where rows have routed_experts",
    )

    def ends_epoch(self, step: int) -> bool:
        return self.steps_per_epoch is not None and step % self.steps_per_epoch == 0


class LoadSettings(BatchSettings, ModelSettings):
    """Settings that a model is loaded, packed and sharded with."""

    @property
    def microbatch_tokens(self) -> int:
        """Tokens of a forward pass on a rank."""
        return self.max_tokens_per_microbatch or self.batch_size * self.seq_len
