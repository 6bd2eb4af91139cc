"""A GRPO trainer that reads top to bottom; start at ``grpo.py``.

    grpo        the loop: claim, rows, advantages, packs, step, publish, check, ack, log
    config      TrainingConfig, every setting of the trainer; cli turns it into flags
    session     waiting, stopping, registering: dealings with the other processes
    data        scored groups -> rows, shifted once
    advantages  rewards -> advantages, by group id
    packing     rows -> packs that hold a shared prefix once
    model       load the model; logprobs and entropy of packs
    minibatch   what the loss needs beside them, as tensors
    losses/     one file per loss
    optim       optimizer, warm-up, clipped step
    weights/    how a new version reaches the inference servers
    alignment   do the servers hold the weights the trainer holds?
    checkpoint  model directories that are whole or absent
    metrics     one JSON line per step
    heartbeat   tells the rollout API what the trainer does while it does it

Importing this package loads neither torch nor transformers.
"""

from example_trainer.cli import config_from_args, parse_args
from example_trainer.config import TrainingConfig

__all__ = ["TrainingConfig", "config_from_args", "parse_args"]
