"""Checks of instructions, by table: a text that follows each, and one that does not."""

from __future__ import annotations

import pytest

from atroposlib.environments.common import instructions as form

KEYWORD = {"keyword": "sea", "relation": "at least", "frequency": 2}
LETTER = {"letter": "Z", "let_relation": "less than", "let_frequency": 2}
CAPITALS = {"capital_relation": "at least", "capital_frequency": 2}
NTH = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"}
# instruction: arguments, a text that follows it, one that does not
CASES = {
    "keywords:existence": ({"keywords": ["sea", "sky"]}, "Sky and sea", "Seaside and sky"),
    "keywords:frequency": (KEYWORD, "sea, Sea", "sea"),
    "keywords:forbidden_words": ({"forbidden_words": ["sea"]}, "seaside", "the Sea."),
    "keywords:letter_frequency": (LETTER, "zoo", "Zig zag"),
    "length_constraints:number_sentences": (
        {"relation": "less than", "num_sentences": 3},
        "One. Two!",
        "One. Two! Three?",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb", "a\n***\n"),
    "length_constraints:number_words": (
        {"relation": "at least", "num_words": 3},
        "it's well-made there",
        "two words",
    ),
    "length_constraints:nth_paragraph_first_word": (NTH, "a\n\n**Then** b", "then\n\na"),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, "[a] [b c]", "[a] []"),
    "detectable_content:postscript": ({"postscript_marker": "P.P.S"}, "a\nP.P.S. b", "P.S. b"),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n- b", "**a**\n- b"),
    "detectable_format:constrained_response": ({}, "My answer is no.", "No."),
    "detectable_format:number_highlighted_sections": (
        {"num_highlights": 2},
        "*a* and **b c**",
        "*a* and * *",
    ),
    "detectable_format:multiple_sections": (
        {"section_spliter": "PART", "num_sections": 2},
        "PART 1\na\nPART 2\nb",
        "PART 1\na",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": [1]}\n```', "{'a': 1}"),
    "detectable_format:title": ({}, "<<a>>\nb", "<< >> <a>"),
    "combination:two_responses": ({}, "a\n******\nb", "a\n******\na"),
    "combination:repeat_prompt": (
        {"prompt_to_repeat": "Do it."},
        "do it. Done",
        "Done. Do it.",
    ),
    "startend:end_checker": ({"end_phrase": "Bye now."}, 'So "bye now."', "Bye now. So"),
    "startend:quotation": ({}, '"a"', '"a'),
    "change_case:capital_word_frequency": (CAPITALS, "AN OLD sea", "AN old sea"),
    "change_case:english_capital": ({}, "A SEA, 7", "A sea"),
    "change_case:english_lowercase": ({}, "a sea, 7", "A sea"),
    "punctuation:no_comma": ({}, "a; b", "a, b"),
}


def test_every_instruction_of_ifeval_has_a_case():
    assert CASES.keys() == form.IFEVAL.keys() - {"language:response_language"}


@pytest.mark.parametrize("name", CASES)
def test_an_instruction_is_followed_by_one_text_and_not_by_another(name):
    arguments, right, wrong = CASES[name]
    assert form.follow_verdicts(right, [(name, arguments)]) == [True]
    assert form.follow_verdicts(wrong, [(name, arguments)]) == [False]
    assert form.follow_verdicts(" \n", [(name, arguments)]) == [False]


def test_loosely_the_first_and_last_line_and_stars_do_not_count():
    wanted = [("startend:quotation", {}), ("punctuation:no_comma", {})]
    assert form.follow_verdicts('Sure, here:\n"*a*"\nBye', wanted) == [False, False]
    assert form.follow_verdicts('Sure, here:\n"*a*"\nBye', wanted, loose=True) == [True, True]


def test_a_language_is_not_checked_and_never_called_wrong():
    wanted = [("language:response_language", {"language": "de"})]
    assert form.follow_verdicts("Guten Tag", wanted) == [None]


def test_deep_json_is_no_json():
    assert form.parsed_json("[" * 100_000) is None


def test_parts_between_two_marks_are_not_empty():
    assert form.parts("a *** b", "***") == ["a", "b"]
    assert form.parts("***\na\n***\n***\nb", "***") is None
