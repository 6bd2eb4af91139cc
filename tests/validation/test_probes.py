"""Replies that deserve nothing, made from gold replies."""

from __future__ import annotations

import pytest

from atroposlib.validation import probes


@pytest.mark.parametrize(
    ("reply", "core"),
    [
        ("42", "42"),
        ("<think>7?</think> <answer> 42 </answer>", "42"),
        ("So \\boxed{42}.", "42"),
        ('<tool_call>{"name": "look"}</tool_call>', ""),
    ],
)
def test_the_core_of_a_reply_is_its_answer(reply, core):
    assert probes.core(reply) == core


def test_another_answer_takes_the_place_of_the_last_one():
    assert probes.with_core("<answer>1</answer> ok", "2") == "<answer>2</answer> ok"
    assert probes.with_core("It is \\boxed{1}.", "2") == "It is \\boxed{2}."
    assert probes.with_core("bare", "2") == "2"


def test_the_answer_stands_in_the_middle_of_others():
    listed = probes.mix_among("<answer>5</answer>", ["1", "2", "5", "3", "4"])
    assert listed[0] == "<answer>1, 2, 5, 3, 4</answer>"


def test_prompts_are_compared_with_their_signs():
    assert probes.normalise_text("What is 3 + 4?") == probes.normalise_text("what is 3 + 4")
    assert probes.normalise_text("3 + 4") != probes.normalise_text("3 - 4")


def test_an_answer_is_found_as_whole_words_only():
    assert probes.contains("The code is A-1 b.", "a-1  B")
    assert not probes.contains("2042 is a year", "204")
    assert not probes.contains("it is 42", "42")  # too short to be looked for
    assert not probes.contains("if a < b:", "if a <= b:")


def test_arguments_are_the_least_that_a_schema_accepts():
    schema = {
        "properties": {
            "city": {"type": "string"},
            "day": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]},
            "unit": {"enum": ["C", "F"]},
            "optional": {"type": "boolean"},
        },
        "required": ["city", "day", "unit"],
    }
    assert probes.arguments_of(schema) == {"city": "a", "day": 3, "unit": "C"}
