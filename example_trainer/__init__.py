"""A trainer that reads top to bottom; start at ``grpo.py``.

    grpo         the loop: batch, rows, advantages, steps, publish, check, ack, save, log
    config       TrainingConfig out of ``settings/``; cli reads flags, files, overrides
    session      waiting, stopping, registering; feed: the next batch, fetched ahead
    data         scored groups -> rows, shifted once
    prepare      rows -> advantages, reference and proximal logprobs, minibatches
    advantages   rewards -> advantages, by group id; shaping before, gae after
    packing      rows -> passes: packs end to end, a shared prefix once
    model        the policy; scoring, attention and head: logprobs of packed rows
    learn        passes -> loss sums -> one divisor -> step
    losses/      one file per loss
    optim        optimizer, learning rate, clipped step; adapters: LoRA
    parallel     ranks (FSDP2); gather, shards, together: what they do in common
    weights/     how a new version reaches the inference servers
    alignment    do the servers hold the weights the trainer holds? diagnosis: why not
    recovery     going back after a crash; snapshots, saver, evaluator, frequency
    metrics      one record per step, to a file, a table (live) and trackers/
    supervised/  sft, dpo and reward_model: training on files
    launch/      the whole run as processes, here or on SLURM; run: trainer and one server

Importing this package loads neither torch nor transformers.
"""

from collections.abc import Callable

from example_trainer.settings.args import config_from_args, parse_args
from example_trainer.settings.config import TrainingConfig

__all__ = [
    "TrainingConfig",
    "config_from_args",
    "parse_args",
    "train_legacy",
    "train_lora",
    "train_lora_restart",
    "train_shared_vllm",
]


def _in_mode(mode: str) -> Callable[[TrainingConfig], None]:
    def train(config: TrainingConfig) -> None:
        from example_trainer import grpo  # loads torch

        given = {name: getattr(config, name) for name in config.model_fields_set}
        grpo.train(TrainingConfig(**{**given, "weight_bridge_mode": mode}))

    train.__doc__ = f"The original's name for training with weight_bridge_mode {mode}."
    return train


train_legacy = _in_mode("none")
train_shared_vllm = _in_mode("shared_vllm")
train_lora = _in_mode("lora_only")
train_lora_restart = _in_mode("lora_restart")
