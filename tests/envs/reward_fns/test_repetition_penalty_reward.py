"""Repetition penalty: rates and scores computed by hand."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns.repetition_penalty_reward import (
    RepetitionPenaltyReward,
    repetition_rates,
)

PLAIN = "The cat sat on a mat today. A dog ran over hills quickly then slept. Birds sang."


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("short", -0.1),
        ("one sentence that has more than ten words in it but no other", -0.1),
        (PLAIN, 0.0),
        # 3 sentences, 1 of them again: -0.6 - 0.4 / 3
        ("I like this very much. I like this very much. Birds sang.", -0.6 - 0.4 / 3),
        ("A b c d e. " * 4, -0.6 - 0.4 * 0.75),
    ],
)
def test_the_repetition_penalty_of_a_table_of_texts(text, score):
    assert RepetitionPenaltyReward()([text]) == [pytest.approx(score)]


def test_repetition_rates_are_shares_of_repeated_text():
    words = "very very good cake and good cake and good cake".split()  # 10 words
    rates = repetition_rates(words, [words[:5], words[2:5], words[5:]], frozenset())
    assert rates["word"] == pytest.approx(4 / 10)  # good and cake, each repeated twice
    assert rates["consecutive"] == pytest.approx(1 / 10)  # very very
    # 3 of 8 triples, 2 of 7 quadruples and 1 of 6 quintuples return
    assert rates["phrase"] == pytest.approx(3 / 8 + (4 / 3) * 2 / 7 + (5 / 3) * 1 / 6)
    assert rates["beginning"] == pytest.approx(1 / 3)  # good cake and, twice of three
    assert repetition_rates(words, [words], frozenset({"good", "cake"}))["word"] == 0.0


def test_a_repetition_costs_from_a_tenth_up_to_one():
    once_more = (
        "Big red dogs ran home. Big red dogs slept. Nobody saw what came after that day."
    )
    # 16 words; beginnings 1/3; triples 1 of 14: 0.5 / 3 + 0.4 / 14, then over the threshold
    rate = 0.5 / 3 + 0.4 / 14
    assert RepetitionPenaltyReward()([once_more]) == [pytest.approx(-(rate - 0.05) / 0.95)]
    assert RepetitionPenaltyReward(threshold=0.19)([once_more]) == [-0.1]
    worst = "no no. " + "word " * 50
    assert RepetitionPenaltyReward()([worst]) == [-1.0]
    assert RepetitionPenaltyReward(short_text_penalty=0.0)(["42"]) == [0.0]


@pytest.mark.parametrize(
    "loop", ["word ", "我们", "haha ", "the same again and again, ", "好的。"]
)
def test_an_endless_loop_of_any_language_costs_all(loop):
    assert RepetitionPenaltyReward()([loop * 600]) == [-1.0]
