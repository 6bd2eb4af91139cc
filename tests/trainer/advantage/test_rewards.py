"""Rewards are shaped in order: overlong penalty, bias, scale, clip."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError, InvalidGroup
from example_trainer.advantage import estimators
from example_trainer.settings.loss import AdvantageSettings


def shape_rewards(rewards, lengths=None, reasons=None, **fields):
    """Rewards as the estimator sees them: ``raw`` passes them on."""
    cfg = AdvantageSettings(advantage="raw", **fields)
    return estimators.compute(
        rewards, range(len(rewards)), cfg, lengths=lengths, finish_reasons=reasons
    )


def test_without_settings_rewards_stay_as_they_are():
    assert shape_rewards([0.1, -3.0, 1e9]) == [0.1, -3.0, 1e9]


def test_bias_then_scale_then_clip():
    assert shape_rewards([0.0, 1.0], reward_bias=-0.5, reward_scale=10.0) == [-5.0, 5.0]
    assert shape_rewards([0.0, 1.0], reward_bias=-0.5, reward_scale=10.0, reward_clip=4) == [
        -4,
        4,
    ]
    assert shape_rewards([30.0, -30.0, 1.0], reward_clip=20.0) == [20.0, -20.0, 1.0]


LIMITS = {"max_new_tokens": 4096, "overlong_tokens": 512}


def test_the_overlong_penalty_rises_over_the_last_tokens_and_is_capped():
    """The limit is 4096, the tail 512: nothing until 3584, half at 3840, all from 4096 on."""
    lengths = [3000, 3584, 3840, 4096, 9000]
    assert shape_rewards([0.0] * 5, lengths, **LIMITS) == [0, 0, -0.5, -1, -1]
    assert shape_rewards([1.0] * 5, lengths, overlong_penalty=0.5, **LIMITS) == [
        1,
        1,
        0.75,
        0.5,
        0.5,
    ]


def test_truncated_row_gets_the_full_overlong_penalty():
    reasons = ["length", "stop", None, "tool_calls"]
    assert shape_rewards([0.0] * 4, [100, 100, 3840, 3840], reasons, **LIMITS) == [
        -1,
        0,
        -0.5,
        -0.5,
    ]


def test_the_penalty_comes_before_bias_and_scale():
    found = shape_rewards(
        [1.0], [4096], reward_bias=0.5, reward_scale=2.0, reward_clip=5.0, **LIMITS
    )
    assert found == [1.0]  # ((1 - 1) + 0.5) x 2


def test_the_penalty_is_part_of_the_baseline():
    cfg = AdvantageSettings(**LIMITS)
    assert estimators.compute([1.0, 1.0], ["a", "a"], cfg, lengths=[4096, 10]) == [-1.0, 1.0]


def test_overlong_penalty_without_a_length_limit_is_rejected():
    with pytest.raises(ConfigError, match="pass lengths"):
        shape_rewards([0.0], **LIMITS)
    with pytest.raises(ConfigError, match="max_new_tokens"):
        shape_rewards([0.0], [10], overlong_tokens=512)


def test_a_reward_that_a_setting_makes_infinite_is_refused():
    with pytest.raises(InvalidGroup, match=r"rewards\[1\]"):
        shape_rewards([0.0, 1e90], reward_scale=1e30)
