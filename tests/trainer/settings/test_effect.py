from __future__ import annotations

from typing import Any

import pytest

from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.effect import idle_settings

EVALUATES = {"eval_command": ["true"]}


def idle(steps: int = 20, **settings: Any) -> dict[str, str]:
    cfg = TrainingConfig(model_name="m", training_steps=steps, **settings)
    return dict(idle_settings(vars(cfg), settings))


@pytest.mark.parametrize(
    ("name", "more", "consequence"),
    [
        ("eval_every_steps", EVALUATES, "no evaluation comes between its steps"),
        ("recover_every_steps", {}, "no recovery checkpoint comes by steps"),
        ("checkpoint_interval", {}, "only the final model is saved"),
        ("publish_every", {}, "the servers sample from the first weights to the end"),
        ("check_every", {}, "only the first step is compared with the servers"),
        ("warmup_steps", {}, "the learning rate does not reach lr"),
    ],
)
def test_a_count_of_steps_beyond_the_run_is_named_and_its_last_step_is_not(
    name: str, more: dict[str, Any], consequence: str
) -> None:
    reason = f"21 is more than the 20 steps of the run: {consequence}"
    assert idle(**{name: 21}, **more) == {name: reason}
    assert idle(**{name: 20}, **more) == {}


@pytest.mark.parametrize(
    ("name", "value", "switch", "reason"),
    [
        ("eval_at_start", True, EVALUATES, "there is nothing to evaluate"),
        (
            "eval_share",
            0.5,
            {**EVALUATES, "eval_where": "held"},
            "evaluation.where is not held",
        ),
        ("recover_every_s", 60, {}, "recover_mode is disabled"),
        ("keep_saved", 2, {"checkpoint_interval": 3}, "no models are saved before the end"),
        ("check_every", 5, {}, "check_rows is 0"),
        ("min_lr_ratio", 0.1, {"lr_schedule": "cosine"}, "lr_schedule is constant"),
        ("critic_lr", 1e-4, {"critic": True, "advantage": "gae"}, "critic is false"),
        (
            "overlong_penalty",
            0.5,
            {"overlong_tokens": 4, "max_new_tokens": 8},
            "overlong_tokens",
        ),
    ],
)
def test_a_setting_whose_switch_is_off_is_named(
    name: str, value: Any, switch: dict[str, Any], reason: str
) -> None:
    off = {"recover_every_s": {"recover_mode": "disabled"}, "check_every": {"check_rows": 0}}
    without = {"checkpoint_interval": 0} if name == "keep_saved" else off.get(name, {})
    if name == "eval_share":
        without = EVALUATES
    assert idle(**{name: value}, **without)[name].startswith(reason)
    assert idle(**{name: value}, **switch) == {}


def test_what_is_not_given_is_not_named() -> None:
    cfg = TrainingConfig(model_name="m", training_steps=1, checkpoint_interval=3)
    assert list(idle_settings(vars(cfg), ["lr"])) == []
