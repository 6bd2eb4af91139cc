"""Which sequences and pairs are kept, and where the prompt of a group ends."""

from __future__ import annotations

import random

import pytest

from atroposlib.cli.collect.selection import (
    SelectionRules,
    best_lines,
    best_rows,
    pair_lines,
    pairs,
    prompt_length,
    split_texts,
    usable_rows,
)
from atroposlib.testing.tiny import char_tokenizer
from tests.client.harness import group

M = -100
SFT_RULES = SelectionRules(max_per_group=2, allow_negative=False, min_difference=0.0)
DPO_RULES = SelectionRules(max_per_group=1, allow_negative=False, min_difference=0.5)


@pytest.mark.parametrize(
    ("scores", "max_per_group", "allow", "difference", "kept"),
    [
        ([0.2, 1.0, 0.5], 3, False, 0.0, [1, 2, 0]),
        ([0.2, 1.0, 0.5], 2, False, 0.0, [1, 2]),
        ([-1.0, 0.0, 0.5], 3, False, 0.0, [2]),  # 0 is not above 0
        ([-1.0, 0.0, 0.5], 3, True, 0.0, [2, 1, 0]),
        ([0.1, 0.6, 1.1], 3, False, 0.5, [2]),  # 0.6 - 0.1 is not above 0.5
        ([-2.0, 0.5], 3, False, 0.5, [1]),  # the lowest counts, kept or not
        ([1.0, 1.0, 1.0], 2, False, 0.0, [0, 1]),  # ties in their order
        ([1.0, 1.0], 3, False, 0.1, []),
        ([0.5, 0.2], 3, False, -1.0, [0, 1]),  # no positive difference: no rule
        ([], 3, True, 0.0, []),
    ],
)
def test_the_best_sequences_of_a_group_are_kept(
    scores, max_per_group, allow, difference, kept
):
    assert best_rows(scores, SelectionRules(max_per_group, allow, difference)) == kept


@pytest.mark.parametrize(
    ("scores", "max_per_group", "allow", "difference", "kept"),
    [
        ([1.0, 0.0], 3, False, 0.5, [(0, 1)]),
        ([1.0, 0.5], 3, False, 0.5, []),  # 0.5 is not below 1.0 - 0.5
        ([1.0, 0.5], 3, False, 0.0, [(0, 1)]),
        ([0.0, -1.0], 3, False, 0.5, []),  # the better one is not above 0
        ([0.0, -1.0], 3, True, 0.5, [(0, 1)]),
        ([1.0, 0.9, 0.0], 3, False, 0.5, [(0, 2)]),  # the negative is not used twice
        ([0.7, 1.0, 0.0], 1, False, 0.5, [(1, 2)]),
        ([1.0, 1.0], 3, False, 0.0, []),
        ([1.0, 0.0], 3, False, -5.0, [(0, 1)]),  # a negative never scores as much or more
        ([1.0], 3, False, 0.0, []),
    ],
)
def test_the_pairs_of_a_group_follow_the_selection_rules(
    scores, max_per_group, allow, difference, kept
):
    assert (
        pairs(scores, SelectionRules(max_per_group, allow, difference), random.Random(0))
        == kept
    )


def test_negatives_are_drawn_from_the_lowest_scores_by_seed():
    scores = [1.0, 0.9, 0.8, 0.3, 0.2, 0.1, 0.0]
    rules = SelectionRules(2, False, 0.1)
    drawn = [pairs(scores, rules, random.Random(seed)) for seed in range(20)]
    assert drawn == [pairs(scores, rules, random.Random(seed)) for seed in range(20)]
    assert {tuple(found) for found in drawn} == {((0, 5), (1, 6)), ((0, 6), (1, 5))}


@pytest.mark.parametrize(
    ("tokens", "masks", "length"),
    [
        ([[1, 2, 3], [1, 2, 4]], [[M, M, 3], [M, M, 4]], 2),
        ([[1, 2, 3, 4], [1, 2, 3, 5]], [[M, M, 3, 4], [M, M, 3, 5]], 2),  # begin alike
        ([[1, 2, 3], [1, 2, 3]], [[M, M, 3], [M, M, 3]], 2),  # the same
        ([[1, 9, 3], [1, 2, 3]], [[M, M, 3], [M, M, 3]], 1),  # another prompt from there
        ([[1, 2, 3], [1, 2, 4]], [[1, 2, 3], [1, 2, 4]], 2),  # masks give no boundary
        ([[1, 2], [1, 2]], [[1, 2], [1, 2]], 0),
        ([[1, 2, 3], [1, 2, 4]], [[M, M, M], [M, M, M]], 2),
        ([[1, 2, 3], [1, 2, 4]], [[M, M, M], [M, 2, 4]], 1),
        ([[7, 1], [8, 1]], [[M, 1], [M, 1]], 0),
    ],
)
def test_the_prefix_is_split_by_tokens_at_the_first_generated_token(tokens, masks, length):
    assert prompt_length(tokens, masks) == length


def test_a_completion_that_repeats_the_prefix_is_not_shortened():
    tokenizer = char_tokenizer()
    tokens = [tokenizer("ab ab ab c")["input_ids"], tokenizer("ab d")["input_ids"]]
    assert split_texts(tokenizer, tokens, 3) == ("ab ", ["ab ab c", "d"])
    assert split_texts(tokenizer, tokens, 0) == ("", ["ab ab ab c", "ab d"])


def test_special_tokens_stay_in_the_text():
    tokenizer = char_tokenizer()
    tokens = tokenizer("<|user|>a<|assistant|>b<|end|>")["input_ids"]
    assert split_texts(tokenizer, [tokens], 3) == (
        "<|user|>a<|assistant|>",
        ["b<|end|>"],
    )


class Bytes:
    """One token per byte, so characters may straddle a boundary."""

    def decode(self, tokens, **_):
        return bytes(tokens).decode("utf-8", errors="replace")


def test_a_character_across_the_boundary_is_part_of_the_completion():
    tokens = [list("aé".encode()), list("aè".encode())]  # the first byte is shared
    assert split_texts(Bytes(), tokens, 2) == ("a", ["é", "è"])


def test_sequences_of_failed_rollouts_are_not_usable():
    assert usable_rows(group(rows=2)) == [0, 1]
    assert usable_rows(group(rows=2, outcomes=["truncated", "judge_error"])) == [0]


def of_messages():
    messages = [[{"role": "user", "content": name}] for name in "abc"]
    scored = group(tokens=[[1, 2]] * 3, masks=[[-100, 2]] * 3, scores=[0.5, -1.0, 2.0])
    scored.messages = messages
    return scored, messages


def of_texts(scores):
    tokenizer = char_tokenizer()
    prompt, right, wrong = (tokenizer.encode(text) for text in ("1+1=", "2", "3"))
    masks = [[-100] * len(prompt) + end for end in (wrong, right)]
    return (
        group(tokens=[prompt + wrong, prompt + right], masks=masks, scores=scores),
        tokenizer,
    )


def test_messages_of_the_best_sequences_are_kept_best_first():
    scored, messages = of_messages()
    assert best_lines(scored, [0, 1, 2], SFT_RULES, None, random.Random(0)) == [
        {"messages": messages[2], "score": 2.0},
        {"messages": messages[0], "score": 0.5},
    ]


def test_the_prompt_is_the_prefix_and_failed_rows_are_left_out():
    scored, tokenizer = of_texts(scores=[3.0, 1.0])
    [line] = best_lines(scored, [1], SFT_RULES, tokenizer, random.Random(0))
    assert (line["prefix"] + line["completion"], line["score"]) == ("1+1=2", 1.0)
    both = best_lines(scored, [0, 1], SFT_RULES, tokenizer, random.Random(0))
    assert [(one["prefix"], one["completion"]) for one in both] == [
        ("1+1=", "3"),
        ("1+1=", "2"),
    ]


def test_the_best_message_is_paired_with_the_lowest():
    scored, messages = of_messages()
    assert pair_lines(scored, [0, 1, 2], DPO_RULES, None, random.Random(0)) == [
        {"pos": messages[2], "score": 2.0, "neg": messages[1]}
    ]


def test_texts_of_a_pair_share_their_prefix():
    scored, tokenizer = of_texts(scores=[-1.0, 1.0])
    assert pair_lines(scored, [0, 1], DPO_RULES, tokenizer, random.Random(0)) == [
        {"prefix": "1+1=", "pos": "2", "score": 1.0, "neg": "3"}
    ]
