"""Every reward by a table of values, worked out by hand from its definition."""

from __future__ import annotations

import sys

import pytest

from atroposlib.envs.reward_fns import registry
from atroposlib.envs.reward_fns.crossword_format_reward import CrosswordFormatReward
from atroposlib.envs.reward_fns.format_reasoning_reward import FormatReasoningReward
from atroposlib.envs.reward_fns.format_reward import FormatReward
from atroposlib.envs.reward_fns.r1_reward import AccuracyXReward, R1Reward
from atroposlib.envs.reward_fns.reasoning_steps_reward import ReasoningStepsReward
from atroposlib.envs.reward_fns.repetition_penalty_reward import (
    RepetitionPenaltyReward,
    repetition_rates,
)
from atroposlib.errors import ConfigError

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
def test_format(options, text, score):
    assert FormatReward(**options)([text]) == [score]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Step 1 a\nStep 2 b\nStep 3 c", 0.5),
        ("step 1 only", 0.5 / 3),
        ("1. a\n2. b\n3) c", 0.5),
        ("- a\n* b\n• c", 0.4),
        ("Therefore a, thus b, hence c", 0.3),
        ("one two three four five six seven eight nine ten", 0.0),
        ("one two three four five six seven eight nine ten eleven", 0.1),
        ("Step 1\nStep 2\nStep 3\n1. a\n2. b\n3. c\n- d\n- e\n- f", 1.0),
        ("", 0.0),
    ],
)
def test_reasoning_steps(text, score):
    assert ReasoningStepsReward()([text]) == [pytest.approx(score)]


def test_reasoning_steps_take_other_weights_by_name():
    reward = ReasoningStepsReward(min_steps=1, pattern_weights={"bullet_points": 0.9})
    assert reward(["- a"]) == [0.9]
    with pytest.raises(ConfigError, match="bullets"):
        ReasoningStepsReward(pattern_weights={"bullets": 1.0})


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
def test_repetition_penalty(text, score):
    assert RepetitionPenaltyReward()([text]) == [pytest.approx(score)]


def test_repetition_rates_are_shares_of_what_is_said_again():
    words = "very very good cake and good cake and good cake".split()  # 10 words
    rates = repetition_rates(words, [words[:5], words[2:5], words[5:]], frozenset())
    assert rates["word"] == pytest.approx(4 / 10)  # good and cake, each said twice more
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
    ],
)
def test_crossword_format(options, text, score):
    assert CrosswordFormatReward(**options)([text]) == [score]


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
def test_format_reasoning(options, text, score):
    assert FormatReasoningReward(**options)([text]) == [score]


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
def test_accuracy_x(options, text, solution, score):
    assert AccuracyXReward(**options)([text], solution=solution) == [score]


def test_r1_is_half_the_format_plus_the_accuracy():
    texts = ["<think>a</think>42", "42", "<think>a</think>no", "no"]
    assert R1Reward()(texts, solution="42") == [1.25, 1.0, 0.25, 0.0]
    other = R1Reward(format_weight=1.0, accuracy_weight=2.0)
    assert other(texts, solution=["42", "42", "no", "yes"]) == [2.5, 2.0, 2.5, 0.0]


# --- chandas: no release on the index loads, so a stand-in with its two functions -------

STAND_IN = """
class svat_identifier:
    @staticmethod
    def IdentifyFromPatternLines(lines):
        return {
            "GGL": {"exact": {"Triṣṭubh": 1}, "accidental": {"Triṣṭubh": 1}},
            "G": {"partial": {"Triṣṭubh": 1}},
        }.get("".join(lines), {})

def to_pattern_lines(lines):
    return [line.strip() for line in lines]
"""


@pytest.fixture
def without_chandas(monkeypatch):
    from atroposlib.envs.reward_fns import chandas_meter_reward

    chandas_meter_reward._chandas.cache_clear()
    monkeypatch.delitem(sys.modules, "chandas", raising=False)
    yield
    chandas_meter_reward._chandas.cache_clear()
    sys.modules.pop("chandas", None)


def test_chandas_meter_by_the_certainty_of_the_classifier(
    without_chandas, tmp_path, monkeypatch
):
    (tmp_path / "chandas.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    reward = registry.create("chandas_meter")
    assert reward(["GG\nL", "G", "LL", ""]) == [1.0, 0.5, 0.0, 0.0]
    assert registry.create("chandas_meter", meter="sragdhara")(["GG\nL"]) == [0.0]


def test_chandas_meter_without_the_package_says_why_all_is_zero(
    without_chandas, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "chandas", None)
    assert registry.create("chandas_meter")(["a", "b"]) == [0.0, 0.0]
    assert "chandas does not load" in caplog.text
