"""A trainer whose loop reads top to bottom in ``grpo.py``.

    learner      what is trained, and a step of it without a run: a library
    loss_properties  checks of a loss, for tests
    grpo         the loop: batch, rows, advantages, steps, publish, check, ack, save, log
    config, cli  the original's import paths of settings/config and settings/args
    settings/    options by section, their flags, YAML files and AReaL's names
    state/       stop signal, schedules
    data/        scored groups -> rows -> packs -> micro-batches
    advantage/   rewards -> advantages per trained token; reference and proximal logprobs
    losses/      a function per loss
    distributed/ ranks, collectives, sharded tensors
    model/       policy and value model: loading, attention, logprobs, adapter, FSDP2
    update/      micro-batches -> loss sums -> one divisor -> clipped step
    weights/     publish a new version to the inference servers, and verify it
    checkpoint/  recovery after a crash, snapshots, exported models
    run/         connections, prefetch, heartbeat, evaluation, metrics
    supervised/  sft, dpo and reward_model: training on files
    launch/      the whole run as processes, on this host or a cluster

Importing this package loads neither torch nor transformers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from example_trainer.settings.args import config_from_args, parse_args
from example_trainer.settings.config import TrainingConfig

if TYPE_CHECKING:
    from example_trainer.learner import Learner

__all__ = [
    "Learner",
    "TrainingConfig",
    "config_from_args",
    "parse_args",
    "train_legacy",
    "train_lora",
    "train_lora_restart",
    "train_shared_vllm",
]


def __getattr__(name: str) -> Any:
    if name != "Learner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from example_trainer.learner import Learner  # loads torch

    return Learner


def _in_mode(mode: str) -> Callable[[TrainingConfig], None]:
    def train(config: TrainingConfig) -> None:
        from example_trainer import grpo  # loads torch

        settings = {name: getattr(config, name) for name in config.model_fields_set}
        grpo.train(TrainingConfig(**{**settings, "weight_bridge_mode": mode}))

    train.__doc__ = f"The original's name for training with weight_bridge_mode {mode}."
    return train


train_legacy = _in_mode("none")
train_shared_vllm = _in_mode("shared_vllm")
train_lora = _in_mode("lora_only")
train_lora_restart = _in_mode("lora_restart")
