"""Containment reward: a table of responses, solutions and scores."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns.r1_reward import AccuracyXReward


@pytest.mark.parametrize(
    ("options", "text", "solution", "score"),
    [
        ({}, "<think>x</think>it is Paris.", "paris", 1.0),
        ({}, "<think>paris</think>it is Rome.", "paris", 0.0),
        ({"case_sensitive": True}, "Paris", "paris", 0.0),
        ({"exact_match": True}, " Paris ", "paris", 1.0),
        ({"exact_match": True}, "it is Paris", "paris", 0.0),
        ({}, "anything", "", 0.0),
        ({}, "anything", None, 0.0),
        ({"reward_value": 3}, "12", 12, 3.0),
    ],
)
def test_the_containment_reward_of_a_table_of_responses(options, text, solution, score):
    assert AccuracyXReward(**options)([text], solution=solution) == [score]
