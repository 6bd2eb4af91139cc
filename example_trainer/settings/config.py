"""TrainingConfig: all settings of a training run, joined from their sections.

Settings of the original trainer keep their names and defaults. A setting without an effect is
refused when it is set.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from atroposlib.errors import ConfigError
from example_trainer.settings.advantage import ObjectiveSettings
from example_trainer.settings.batch import LoadSettings
from example_trainer.settings.model import parse_layers
from example_trainer.settings.optim import OptimSettings
from example_trainer.settings.run import OriginalSettings, RunSettings, WatchSettings
from example_trainer.settings.weights import WeightSettings, published_directory

__all__ = ["TrainingConfig", "parse_layers"]

# Two correct implementations differ by about 1e-4 nats per token in float32 and a few
# hundredths in bfloat16; weights one version behind differ by more once they have moved.
LOGPROB_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}


class TrainingConfig(
    OriginalSettings,
    WatchSettings,
    RunSettings,
    WeightSettings,
    ObjectiveSettings,
    OptimSettings,
    LoadSettings,
):
    """Settings of one training run; each is also a flag (``--batch-size``).

    Sequences per step = batch_size x gradient_accumulation_steps.

    Raises:
        ConfigError: settings contradict each other; names them and a remedy.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    # Not a validator: pydantic would wrap the ConfigError in a ValidationError.
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        given = self.model_fields_set
        if "vllm_restart_interval" in given and "publish_every" not in given:
            self.publish_every = self.vllm_restart_interval
        if self.wandb_group is None and "wandb" in self.tracker_names:
            self.wandb_group = secrets.token_hex(4)
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        for wrong, why in (
            (
                self.single_copy,
                "single_copy had no effect in the original and has none here; leave it out"
                " (weight_publisher shared_memory does not write to disk)",
            ),
            (
                self.publisher == "lora" and not self.trains_adapter,
                "weight_publisher lora publishes an adapter, but lora is false",
            ),
            (
                self.critic and self.advantage != "gae",
                "a critic only serves advantage gae; set --advantage gae or leave critic out",
            ),
            (
                self.overlong_tokens > 0 and self.max_new_tokens is None,
                "overlong_tokens counts back from max_new_tokens; set that as well",
            ),
            (
                self.kl_coef > 0 and self.kl_in == "loss" and self.kl_estimator == "k1",
                "k1 has no gradient on average, so a KL in the loss would do nothing; use k2"
                " or k3, or kl_in: reward",
            ),
            (
                self.importance_floor > self.importance_cap,
                "importance_floor is above importance_cap",
            ),
            (
                self.dual_clip is not None and self.loss not in ("grpo", "ppo", "decoupled"),
                f"dual_clip has no meaning in loss {self.loss}; leave it out",
            ),
        ):
            if wrong:
                raise ConfigError(why)

    @property
    def trains_adapter(self) -> bool:
        """Whether a LoRA adapter is trained instead of the weights."""
        if self.lora is not None:
            return self.lora
        return self.publisher == "lora"

    @property
    def trainer_retries(self) -> int:
        """Times a launcher starts a failed trainer again."""
        return self.recover_retries if self.recover_mode in ("auto", "fault") else 0

    @property
    def servers(self) -> list[str]:
        if self.inference_urls is not None:
            return self.inference_urls
        return [f"http://localhost:{self.vllm_port}"]

    @property
    def server_token(self) -> str | None:
        return self.inference_token or os.environ.get("ATROPOS_INFERENCE_TOKEN")

    @property
    def logprob_tolerance(self) -> float:
        return self.max_logprob_mismatch or LOGPROB_TOLERANCE[self.compute_dtype]

    @property
    def tracker_names(self) -> list[str]:
        names: list[str] = list(dict.fromkeys(self.trackers))
        return names if not self.use_wandb or "wandb" in names else ["wandb", *names]

    @property
    def published(self) -> Path:
        return published_directory(self.publish_dir, self.save_path)

    @property
    def metrics_file(self) -> Path:
        return Path(self.metrics_path or Path(self.log_dir) / "metrics.jsonl")
