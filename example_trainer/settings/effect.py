"""Settings that are valid and can have no effect in the planned run: notes at its start. Pure.

evaluation.every 50 in a run of 20 steps     critic_lr without critic
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple


class IdleSetting(NamedTuple):
    """A setting without effect, and why."""

    name: str
    reason: str


# Counted in steps: what does not come where the run has fewer.
IN_STEPS = {
    "eval_every_steps": "no evaluation comes between its steps",
    "recover_every_steps": "no recovery checkpoint comes by steps",
    "checkpoint_interval": "only the final model is saved",
    "publish_every": "the servers sample from the first weights to the end",
    "check_every": "only the first step is compared with the servers",
    "keep_adapters_every": "no adapter is kept by it",
    "warmup_steps": "the learning rate does not reach lr",
}
OF_EVALUATION = (
    "eval_every_epochs",
    "eval_every_steps",
    "eval_every_s",
    "eval_at_start",
    "eval_share",
    "eval_url",
    "eval_timeout_s",
)
OF_RECOVERY = (
    "recover_every_epochs",
    "recover_every_steps",
    "recover_every_s",
    "keep_recover",
    "recover_retries",
)


def idle_settings(values: Mapping[str, Any], given: Collection[str]) -> Iterator[IdleSetting]:
    """The settings of ``given`` names that have no effect in a run, each once.

    ``values``: every setting of the trainer, by its name.
    """
    named: set[str] = set()
    for setting in _idle(values):
        if setting.name in given and setting.name not in named:
            named.add(setting.name)
            yield setting


def _idle(values: Mapping[str, Any]) -> Iterator[IdleSetting]:
    for names, is_idle, reason in _switched_off(values):
        if is_idle:
            yield from (IdleSetting(name, reason) for name in names)
    steps = values["training_steps"]
    for name, consequence in IN_STEPS.items():
        value = values[name]
        if value is not None and value > steps:
            reason = f"{value} is more than the {steps} steps of the run: {consequence}"
            yield IdleSetting(name, reason)


def _switched_off(values: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], bool, str]]:
    """Names, whether another setting takes their effect away, and which."""
    evaluates = values["eval_command"] is not None or values["eval_environments"]
    nothing = "there is nothing to evaluate: name evaluation.environments or eval_command"
    yield OF_EVALUATION, not evaluates, nothing
    where = values["eval_where"]
    yield ("eval_share",), where != "held", "evaluation.where is not held"
    yield ("eval_url",), where != "dir", "evaluation.where is not dir"
    yield OF_RECOVERY, values["recover_mode"] == "disabled", "recover_mode is disabled"
    intervals = ("checkpoint_interval", "save_every_epochs", "save_every_s")
    unsaved = "no models are saved before the end: set checkpoint_interval"
    yield ("keep_saved",), not any(values[name] for name in intervals), unsaved
    yield ("check_every",), not values["check_rows"], "check_rows is 0"
    is_constant = values["lr_schedule"] == "constant"
    yield ("min_lr_ratio",), is_constant, "lr_schedule is constant"
    of_critic = ("critic_model", "critic_lr", "critic_clip_eps")
    yield of_critic, not values["critic"], "critic is false"
    yield ("overlong_penalty",), not values["overlong_tokens"], "overlong_tokens is 0"
