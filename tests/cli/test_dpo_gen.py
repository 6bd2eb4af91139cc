"""Pairs of preference data from one group."""

from __future__ import annotations

import random

from atroposlib.cli.dpo_gen import lines_of
from atroposlib.cli.selection import SelectionRules
from atroposlib.testing.tiny import char_tokenizer
from tests.client.harness import group

RULES = SelectionRules(max_per_group=1, allow_negative=False, min_difference=0.5)


def test_the_best_message_is_paired_with_the_lowest():
    messages = [[{"role": "user", "content": name}] for name in "abc"]
    scored = group(tokens=[[1, 2]] * 3, masks=[[-100, 2]] * 3, scores=[0.5, -1.0, 2.0])
    scored.messages = messages
    assert lines_of(scored, [0, 1, 2], RULES, None, random.Random(0)) == [
        {"pos": messages[2], "score": 2.0, "neg": messages[1]}
    ]


def test_texts_of_a_pair_share_their_prefix():
    tokenizer = char_tokenizer()
    prompt, right, wrong = (tokenizer.encode(text) for text in ("1+1=", "2", "3"))
    scored = group(
        tokens=[prompt + wrong, prompt + right],
        masks=[[-100] * len(prompt) + wrong, [-100] * len(prompt) + right],
        scores=[-1.0, 1.0],
    )
    assert lines_of(scored, [0, 1], RULES, tokenizer, random.Random(0)) == [
        {"prefix": "1+1=", "pos": "2", "score": 1.0, "neg": "3"}
    ]
