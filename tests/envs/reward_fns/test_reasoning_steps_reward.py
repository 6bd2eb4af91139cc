"""Reasoning-steps reward: scores computed by hand."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns.reasoning_steps_reward import ReasoningStepsReward
from atroposlib.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Step 1 a\nStep 2 b\nStep 3 c", 0.5),
        ("step 1 only", 0.5 / 3),
        ("1. a\n2. b\n3) c", 0.5),
        ("- a\n* b\n• c", 0.4),
        ("Therefore a, thus b, hence c", 0.3),
        ("one two three four five six seven eight nine ten", 0.0),
        ("one two three four five six seven eight nine ten eleven", 0.1),
        ("Step 1\nStep 2\nStep 3\n1. a\n2. b\n3. c\n- d\n- e\n- f", 1.0),
        ("", 0.0),
    ],
)
def test_the_reasoning_steps_reward_of_a_table_of_texts(text, score):
    assert ReasoningStepsReward()([text]) == [pytest.approx(score)]


def test_reasoning_steps_take_other_weights_by_name():
    reward = ReasoningStepsReward(min_steps=1, pattern_weights={"bullet_points": 0.9})
    assert reward(["- a"]) == [0.9]
    with pytest.raises(ConfigError, match="bullets"):
        ReasoningStepsReward(pattern_weights={"bullets": 1.0})
