"""Settings that are valid and can have no effect in the planned run: notes at its start. Pure.

evaluation.every 50 in a run of 20 steps     critic_lr without critic
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from example_trainer.settings.config import TrainingConfig


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
    *("eval_every_epochs", "eval_every_steps", "eval_every_s", "eval_at_start"),
    *("eval_share", "eval_url", "eval_timeout_s"),
)
OF_RECOVERY = (
    *("recover_every_epochs", "recover_every_steps", "recover_every_s", "keep_recover"),
    "recover_retries",
)


def idle_settings(cfg: TrainingConfig, given: Collection[str]) -> Iterator[IdleSetting]:
    """The settings of ``given`` names that have no effect in a run of ``cfg``, each once."""
    named: set[str] = set()
    for setting in _idle(cfg):
        if setting.name in given and setting.name not in named:
            named.add(setting.name)
            yield setting


def _idle(cfg: TrainingConfig) -> Iterator[IdleSetting]:
    for names, is_idle, reason in _switched_off(cfg):
        if is_idle:
            yield from (IdleSetting(name, reason) for name in names)
    for name, consequence in IN_STEPS.items():
        value = getattr(cfg, name)
        if value is not None and value > cfg.training_steps:
            reason = f"{value} is more than the {cfg.training_steps} steps of the run"
            yield IdleSetting(name, f"{reason}: {consequence}")


def _switched_off(cfg: TrainingConfig) -> Iterator[tuple[tuple[str, ...], bool, str]]:
    """Names, whether another setting takes their effect away, and which."""
    nothing = "there is nothing to evaluate: name evaluation.environments or eval_command"
    yield OF_EVALUATION, not cfg.evaluates, nothing
    yield ("eval_share",), cfg.eval_where != "held", "evaluation.where is not held"
    yield ("eval_url",), cfg.eval_where != "dir", "evaluation.where is not dir"
    yield OF_RECOVERY, cfg.recover_mode == "disabled", "recover_mode is disabled"
    saves = cfg.checkpoint_interval or cfg.save_every_epochs or cfg.save_every_s
    unsaved = "no models are saved before the end: set checkpoint_interval"
    yield ("keep_saved",), not saves, unsaved
    yield ("check_every",), not cfg.check_rows, "check_rows is 0"
    is_constant = cfg.lr_schedule == "constant"
    yield ("min_lr_ratio",), is_constant, "lr_schedule is constant"
    of_critic = ("critic_model", "critic_lr", "critic_clip_eps")
    yield of_critic, not cfg.critic, "critic is false"
    yield ("overlong_penalty",), not cfg.overlong_tokens, "overlong_tokens is 0"
