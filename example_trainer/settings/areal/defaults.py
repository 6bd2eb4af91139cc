"""A whole file in AReaL's form: what it trains, and AReaL's defaults of what it leaves out.

Only defaults that differ from CONFIG.md's and decide the loss or the update are here.
Given options replace them, as do options of the command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from atroposlib.errors import ConfigError
from example_trainer.settings.areal.other_commands import TYPE, kind_of, sentence_of_pairs

MISSING = "???"  # a value that AReaL's reference leaves to the user
_OF_A_RUN = frozenset(
    "experiment_name trial_name train_dataset gconfig rollout allocation_mode".split()
)
_OPTIMIZER: dict[str, Any] = {
    "actor.optimizer.type": "adam",
    "actor.optimizer.lr": 2e-5,
    "actor.optimizer.weight_decay": 0.05,
    "actor.optimizer.beta2": 0.95,
    "actor.optimizer.eps": 1e-5,
    "actor.optimizer.warmup_steps_proportion": 0.001,
}
_POLICY: dict[str, Any] = {
    "actor.use_decoupled_loss": False,
    "actor.recompute_logprob": False,
    "actor.ppo_n_minibatches": 4,
    "actor.reward_norm": None,  # neither baseline nor scale: REINFORCE
    "actor.reward_clip": 20.0,
    "rollout.max_head_offpolicyness": 0,
    "gconfig.n_samples": 1,
}
_KL = {"actor.kl_ctl": 0.1}
# Keys of the same default under another name.
_OTHER_NAMES = {
    "actor.optimizer.lr": ("actor.lr", "lr"),
    "rollout.max_head_offpolicyness": ("async_training",),
    # The switches choose a loss together; further options choose it too.
    "actor.use_decoupled_loss": (
        "actor.use_sapo_loss",
        "actor.m2_threshold",
        "actor.importance_sampling_level",
    ),
}


def is_areal_form(tree: Mapping[str, Any]) -> bool:
    """Whether a YAML file is a whole run in AReaL's form: a model, and a section of the run."""
    has_model = any(isinstance(tree.get(name), Mapping) for name in ("actor", "model"))
    return has_model and not _OF_A_RUN.isdisjoint(tree)


def is_supervised(options: Mapping[str, Any]) -> bool:
    """Whether the options train on given texts, without rewards.

    ``train_dataset.type`` decides; without it a ``model`` in place of the actor does.

    Raises ConfigError: they train a reward model or on preferences; names the command.
    """
    as_actors = {as_actor(key): value for key, value in options.items()}
    kind = kind_of(as_actors)
    if kind is None and any(key.startswith("model.") for key in options):
        kind = "sft"
    if options.get("model.is_critic"):
        kind = "rw"
    if sentence := sentence_of_pairs(kind, as_actors):
        raise ConfigError(sentence)
    if kind not in (None, MISSING, "rl", "sft"):
        raise ConfigError(f"{TYPE} {kind}: write rl (rewards), sft, rw or dpo")
    return bool(kind == "sft")


def as_actor(key: str) -> str:
    """The key with ``model``, of AReaL's SFT, replaced by ``actor``."""
    return re.sub(r"^model[.]", "actor.", key)


def left_out(options: Mapping[str, Any]) -> dict[str, Any]:
    """AReaL's defaults that ``options`` leaves out; raises as is_supervised."""
    defaults = dict(_OPTIMIZER)
    if not is_supervised(options):
        defaults |= _POLICY
        if has_reference(options):
            defaults |= _KL
    keys = {as_actor(key) for key in options}

    def is_given(key: str) -> bool:
        names = (key, *_OTHER_NAMES.get(key, ()))
        return bool(keys.intersection(names)) or any(
            name.startswith(f"{key}.") for name in keys
        )

    return {key: value for key, value in defaults.items() if not is_given(key)}


def has_reference(options: Mapping[str, Any]) -> bool:
    """Whether a reference model is configured: AReaL has a KL term only with it."""
    return options.get("ref", "given") is not None and any(
        key.startswith("ref.") for key in options
    )


def note_of(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """Lines that name the defaults taken, and the defaults that are not AReaL's."""
    listed = ", ".join(f"{key}={_value_text(value)}" for key, value in defaults.items())
    lines = [f"left out, so AReaL's defaults: {listed}"] if listed else []
    if is_supervised(options):
        return lines
    if "actor.kl_ctl" not in options and not has_reference(options):
        lines.append(
            "actor.kl_ctl: no KL without ref, where AReaL's 0.1 has no reference model"
        )
    is_decoupled = options.get("actor.use_decoupled_loss")
    if is_decoupled and not any("imp_weight" in key or "rejection" in key for key in options):
        lines.append(
            "actor.behav_imp_weight_cap: AReaL bounds no importance weight without it; here it"
            " is cut at importance_cap"
        )
    return lines


def _value_text(value: Any) -> str:
    """The value as YAML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
