"""Files in AReaL's form that another command runs: a sentence that has the command. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

Given = Mapping[str, Any]
TYPE = "train_dataset.type"
REFERENCE = re.compile(r"\$\{([^${}]*)\}")
# Option, with the model as the actor -> words before its value.
_OF_PAIRS = {
    "actor.path": "--model-name",
    "train_dataset.path": "--train-file",
    "valid_dataset.path": "--valid-file",
    "train_dataset.max_length": "--seq-len",
    "train_dataset.batch_size": "--batch-size 1 --gradient-accumulation-steps",
    "total_train_epochs": "--epochs",
    "total_train_steps": "--training-steps",
    "actor.optimizer.lr": "--lr",
    "actor.optimizer.weight_decay": "--weight-decay",
    "seed": "--seed",
    "saver.freq_steps": "--checkpoint-interval",
    "cluster.fileroot": "--save-path",
}
_OF_DPO = {
    "actor.beta": "--beta",
    "actor.loss_type": "--preference-loss",
    "ref.path": "--reference-model",
}
_COMMANDS = {
    "rw": ("atropos train rm", "reward models are trained", _OF_PAIRS),
    "dpo": ("atropos train dpo", "preferences are trained", _OF_PAIRS | _OF_DPO),
}
PORT = 9001


def kind_of(options: Given) -> str | None:
    """What the options, with the model as the actor, train: ``train_dataset.type`` or a sign."""
    if options.get("actor.beta") is not None:
        return "dpo"
    return options.get(TYPE)


def sentence_of_pairs(kind: Any, options: Given) -> str | None:
    """The sentence about a file that trains on pairs; None for the rest.

    Example: train_dataset.type rw: reward models are trained on a file with a pair a line, by
    atropos train rm --model-name m --train-file pairs.jsonl
    """
    if kind not in _COMMANDS:
        return None
    command, about, flags = _COMMANDS[kind]
    words = command.split()
    values = {"actor.path": "MODEL", "train_dataset.path": "FILE.jsonl"} | plain_values(
        options
    )
    for key, flag in flags.items():
        if key in values:
            words += [*flag.split(), str(values[key])]
    return f"{TYPE} {kind}: {about} on a file with a pair a line, by {shlex.join(words)}"


def plain_values(options: Given) -> dict[str, Any]:
    """The options that have a value, with a reference to another key replaced."""
    values = {}
    for key, value in options.items():
        reference = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        value = options.get(reference[1].strip()) if reference else value
        is_open = isinstance(value, str) and ("${" in value or value in ("", "???"))
        if value is not None and not is_open:
            values[key] = value
    return values


def trains(options: Given) -> bool:
    """Whether a file of AReaL has a model to train, and ranks that train it."""
    has_model = any(key.startswith(("actor.", "model.")) for key in options)
    mode = str(options.get("allocation_mode") or "")
    return has_model and not mode.endswith(("+eval", "+cpu"))


def sentence_of_evaluation(options: Given, environment: str | None) -> str:
    """The sentence about a file that samples and scores, and trains nothing."""
    values = plain_values(options)
    paths = ("actor.path", "model.path", "sglang.model_path", "vllm.model", "tokenizer_path")
    model = shlex.quote(str(next((values[key] for key in paths if key in values), "MODEL")))
    served = f"--openai.base_url http://127.0.0.1:{PORT}/v1 --openai.model_name {model}"
    return (
        "the file trains nothing: it names no actor and no model, or its allocation is +eval;"
        f" `atropos infer --model {model} --port {PORT}`, or another engine, serves the model, and"
        f" `atropos eval {environment or 'ENV'} {served}` evaluates it"
    )
