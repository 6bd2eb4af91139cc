"""Cascading reward: accuracy, and a bonus for the format of right answers."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns.accuracy_reward import AccuracyReward
from atroposlib.envs.reward_fns.cascading_r1_math_reward import cascading_r1_math_reward


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"<think>a</think>\boxed{4}", 1.5),
        (r"<think>1 < 2 and <b></think>\boxed{4} < 5", 1.5),
        (r"\boxed{4}", 1.0),
        (r"so <think>a</think>\boxed{4}", 1.0),
        (r"<think>a</think><think>b</think>\boxed{4}", 1.0),
        (r"<think>a</think>\boxed{5}", 0.0),
    ],
)
def test_only_a_right_answer_earns_the_bonus_for_its_format(text, score):
    assert cascading_r1_math_reward([text], solution="4") == [score]


def test_no_score_stays_none_in_the_cascade(monkeypatch):
    monkeypatch.setattr(AccuracyReward, "_score", lambda self, text, gold: None)
    assert cascading_r1_math_reward(["<think>a</think>b"], solution="4") == [None]
