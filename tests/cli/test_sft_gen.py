"""Lines of supervised training data from one group."""

from __future__ import annotations

import random

from atroposlib.cli.selection import SelectionRules
from atroposlib.cli.sft_gen import lines_of
from atroposlib.testing.tiny import char_tokenizer
from tests.client.harness import group

RULES = SelectionRules(max_per_group=2, allow_negative=False, min_difference=0.0)


def test_messages_of_the_best_sequences_are_kept_best_first():
    messages = [[{"role": "user", "content": name}] for name in "abc"]
    scored = group(tokens=[[1, 2]] * 3, masks=[[-100, 2]] * 3, scores=[0.5, -1.0, 2.0])
    scored.messages = messages
    assert lines_of(scored, [0, 1, 2], RULES, None, random.Random(0)) == [
        {"messages": messages[2], "score": 2.0},
        {"messages": messages[0], "score": 0.5},
    ]


def test_the_prompt_is_the_prefix_and_failed_rows_are_left_out():
    tokenizer = char_tokenizer()
    prompt, right, wrong = (tokenizer.encode(text) for text in ("1+1=", "2", "3"))
    scored = group(
        tokens=[prompt + wrong, prompt + right],
        masks=[[-100] * len(prompt) + wrong, [-100] * len(prompt) + right],
        scores=[3.0, 1.0],
    )
    [line] = lines_of(scored, [1], RULES, tokenizer, random.Random(0))
    assert (line["prefix"] + line["completion"], line["score"]) == ("1+1=2", 1.0)
    both = lines_of(scored, [0, 1], RULES, tokenizer, random.Random(0))
    assert [(one["prefix"], one["completion"]) for one in both] == [
        ("1+1=", "3"),
        ("1+1=", "2"),
    ]
