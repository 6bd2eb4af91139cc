"""R1 reward: weighted sum of format and accuracy."""

from __future__ import annotations

from atroposlib.envs.reward_fns.r1_reward import R1Reward


def test_r1_is_half_the_format_plus_the_accuracy():
    texts = ["<think>a</think>42", "42", "<think>a</think>no", "no"]
    assert R1Reward()(texts, solution="42") == [1.25, 1.0, 0.25, 0.0]
    other = R1Reward(format_weight=1.0, accuracy_weight=2.0)
    assert other(texts, solution=["42", "42", "no", "yes"]) == [2.5, 2.0, 2.5, 0.0]
