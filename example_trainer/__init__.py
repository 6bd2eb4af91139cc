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

from example_trainer.cli import config_from_args, parse_args
from example_trainer.config import TrainingConfig

__all__ = ["TrainingConfig", "config_from_args", "parse_args"]
