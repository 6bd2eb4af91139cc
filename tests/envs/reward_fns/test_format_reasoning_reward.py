"""Format-reasoning reward: a table of texts and scores."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns.format_reasoning_reward import FormatReasoningReward


@pytest.mark.parametrize(
    ("options", "text", "score"),
    [
        ({}, "<think>a</think>b", 0.5),
        ({}, "<think>1 < 2</think>b", 0.5),
        ({}, "<think> </think>b", 0.0),
        ({}, "<think>a</think> ", 0.0),
        ({}, "b", 0.0),
        ({}, "<think>a</think><think>b</think>c", 0.0),
        ({}, "<think>a</think>b</think>c", 0.0),
        ({"require_response": False}, "<think>a</think>", 0.5),
        ({"require_thinking": False}, "b", 0.5),
        ({"allow_multiple_thinking": True}, "<think>a</think><think>b</think>c", 0.5),
        ({"reward_value": 2}, "<think>a</think>b", 2.0),
    ],
)
def test_the_format_reasoning_reward_of_a_table_of_texts(options, text, score):
    assert FormatReasoningReward(**options)([text]) == [score]
