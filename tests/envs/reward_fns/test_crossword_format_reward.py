"""Crossword-format reward: a table of texts and scores."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns.crossword_format_reward import CrosswordFormatReward


@pytest.mark.parametrize(
    ("options", "text", "score"),
    [
        ({}, "1-Across: WORD", 1.0),
        ({}, "1-Across: WORD\n2-Down: OTHER", 1.0),
        ({}, "1-Across: WORD\n2-Down: OTH3R", 0.0),
        ({}, "1-Across: word", 0.0),
        ({}, "WORD", 0.0),
        ({"penalize_invalid_chars": False}, "1-Across: w0rd", 1.0),
        ({"reward_value": 0.5, "valid_chars": "abc"}, "3-Down: cab", 0.5),
        ({"format_patterns": [r"=(\w+)"]}, "=WORD", 1.0),
        ({"format_patterns": [r"=(\S+)"]}, "=a:WORD", 0.0),
        ({"format_patterns": [r"\d+-Across: [A-Z]+"]}, "1-Across: WORD", 1.0),
        ({"format_patterns": [r"\d+-Across:\s*\S+"]}, "1-Across: W0RD", 0.0),
        ({"format_patterns": [r"[A-Z]{4}"]}, "the WORD", 1.0),
    ],
)
def test_the_crossword_format_reward_of_a_table_of_texts(options, text, score):
    assert CrosswordFormatReward(**options)([text]) == [score]
