"""Format reward: a table of texts and scores."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns.format_reward import FormatReward

BOTH = "<think>a</think><answer>b</answer>"


@pytest.mark.parametrize(
    ("options", "text", "score"),
    [
        ({}, "<think>a\nb</think>", 1.0),
        ({}, "<ANSWER>a</Answer>", 1.0),
        ({}, "<think>a", 0.0),
        ({}, "", 0.0),
        ({"require_all_tags": True}, "<think>a</think>", 0.0),
        ({"require_all_tags": True}, BOTH, 1.0),
        ({"case_sensitive": True}, "<THINK>a</THINK>", 0.0),
        ({"preferred_tags": ["x.y"]}, "<x.y>1</x.y>", 1.0),
        ({"preferred_tags": ["x.y"]}, "<x-y>1</x-y>", 0.0),
    ],
)
def test_the_format_reward_of_a_table_of_texts(options, text, score):
    assert FormatReward(**options)([text]) == [score]
