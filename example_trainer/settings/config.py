"""TrainingConfig: all settings of a training run, joined from their sections.

Settings of the original trainer keep their names and defaults. A setting without an effect is
refused when it is set.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from atroposlib.settings.sentences import Contradiction, Contradictions
from atroposlib.wire import Registration
from example_trainer.settings.algorithms import (
    Check,
    MixtureSettings,
    mixture_contradictions,
    objective_checks,
)
from example_trainer.settings.batch import LoadSettings
from example_trainer.settings.loss import ObjectiveSettings
from example_trainer.settings.model import parse_layers
from example_trainer.settings.optim import OptimSettings
from example_trainer.settings.run import EvaluationSettings, RunSettings, WatchSettings
from example_trainer.settings.weights import ServingSettings

__all__ = ["TrainingConfig", "parse_layers"]

CHECKPOINT_IDENTITY = (
    "model_name",
    "optimizer",
    "trains_adapter",
    "lora_r",
    "lora_target_modules",
    "lora_layer_indices",
    "train_layer_indices",
    "freeze",
    "critic",
)


class EvaluatorSettings(ServingSettings, WatchSettings, EvaluationSettings, RunSettings):
    """Settings of evaluations: the servers, the folders, and when; nothing of the learning."""

    @property
    def published(self) -> Path:
        return Path(self.publish_dir or Path(self.save_path) / "published")


class TrainingConfig(
    EvaluatorSettings,
    MixtureSettings,
    ObjectiveSettings,
    OptimSettings,
    LoadSettings,
):
    """Settings of a training run; each is also a flag (``--batch-size``).

    Sequences per step = batch_size x gradient_accumulation_steps.

    Raises:
        Contradictions: settings contradict each other; names the settings and a remedy.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    # Not a validator: pydantic would wrap the error in a ValidationError.
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        names = self.model_fields_set
        if "vllm_restart_interval" in names and "publish_every" not in names:
            self.publish_every = self.vllm_restart_interval
        if self.wandb_group is None and "wandb" in self.tracker_names:
            self.wandb_group = secrets.token_hex(4)
        contradictions = [
            Contradiction(names, why) for names, wrong, why in self._checks() if wrong
        ]
        contradictions += mixture_contradictions(self)
        if contradictions:
            raise Contradictions(contradictions)

    def _checks(self) -> Iterator[Check]:
        yield (
            ("single_copy",),
            self.single_copy,
            "single_copy had no effect in the original and has none here; leave it out"
            " (weight_publisher shared_memory does not write to disk)",
        )
        yield (
            ("weight_publisher", "lora"),
            self.publisher == "lora" and not self.trains_adapter,
            "weight_publisher lora publishes an adapter, but lora is false",
        )
        yield (
            ("keep_adapters", "publish_adapter_name", "weight_publisher"),
            self.keep_adapters > 0
            and (self.publisher != "lora" or self.publish_adapter_name is None),
            "keep_adapters keeps adapters that weight_publisher lora publishes under"
            " publish_adapter_name; set both, or leave it out",
        )
        yield (
            ("eval_where", "eval_environments", "eval_command"),
            self.eval_where != "shared" and not self.evaluates,
            f"eval_where {self.eval_where} has nothing to evaluate: name eval_environments or"
            " eval_command",
        )
        yield from objective_checks(self)
        yield (
            ("optimizer_offload", "optimizer"),
            self.optimizer_offload and self.optimizer != "adamw",
            "optimizer_offload keeps the moments of adamw in main memory, and the optimizer"
            f" is {self.optimizer}; set --optimizer adamw or leave it out",
        )

    def registration(self, max_token_len: int, **more: Any) -> Registration:
        """The registration of this process, at step 0; ``more`` replaces fields of it."""
        fields = {
            "wandb_group": self.wandb_group or "",
            "wandb_project": self.wandb_project or "",
            "batch_size": self.sequences_per_step,
            "max_token_len": max_token_len,
            "checkpoint_dir": self.save_path,
            "save_checkpoint_interval": self.checkpoint_interval or self.training_steps,
            "starting_step": 0,
            "num_steps": self.training_steps,
            # Keep acked batches until a checkpoint is committed.
            "commits": self.recover_mode != "disabled",
            "max_staleness": self.max_staleness,
            "staleness_policy": self.staleness_policy,
            "require_certificate": self.require_certificate,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "run_name": self.run_name or "",
            "take_over": self.take_over,
            "tokenizer": self.model_name,
        }
        return Registration(**{**fields, **more})

    @property
    def checkpoint_identity(self) -> dict[str, Any]:
        """Settings that determine which tensors a checkpoint holds and their meaning."""
        return {name: getattr(self, name) for name in CHECKPOINT_IDENTITY}
