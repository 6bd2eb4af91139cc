"""Reasoning and answer of texts in the forms of several families of models."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.text.parts import (
    REASONING_MARKS,
    answer_of,
    cut_at_stop,
    harmony_messages,
    is_well_formed,
    opening_of,
    reasoning_blocks,
    split,
)

ANALYSIS = "<|channel|>analysis<|message|>hmm 5"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>It is 7<|return|>"
TO_ADD = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
CALL = '<tool_call>{"name": "w", "arguments": {"t": "<think> a </think> b"}}</tool_call>'
FUNCTION = "<function=w>\n<parameter=t>\n<think>\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("text", "thoughts", "answer"),
    [
        ("4", (), "4"),
        ("", (), ""),
        ("<think>a</think>b", ("a",), "b"),
        ("\n<think>\na\n</think>\n\nb", ("a",), "\n\nb"),
        ("a</think>b", ("a",), "b"),
        ("<think></think>b", ("",), "b"),
        ("<think>a", ("a",), None),
        ("Well. <think>a", ("a",), None),
        ("<think>a</think>b<think>c", ("a", "c"), None),
        ("<think>a</think>b<think>c</think>d", ("a", "c"), "d"),
        ("a</think>b</think>c", ("a", "b"), "c"),
        ("<think>a <think> b</think>c", ("a <think> b",), "c"),
        ("<think>close it with `</think>` and", ("close it with `</think>` and",), None),
        ("I thought in `<think>` tags: 4", (), "I thought in `<think>` tags: 4"),
        ("<think>a</thinking></think>b", ("a</thinking>",), "b"),
        ('<think>He said "yes"</think>b', ('He said "yes"',), "b"),
        ("<think>so `x`</think>`y`", ("so `x`",), "`y`"),
        ("it's '<think>' I mean", (), "it's '<think>' I mean"),
        ("[THINK]a[/THINK]7", ("a",), "7"),
        ("◁think▷a◁/think▷7", ("a",), "7"),
        ("<seed:think>a</seed:think>7", ("a",), "7"),
        (f"<think>plan</think>{CALL}", ("plan",), CALL),
        (CALL, (), CALL),
        (f"{CALL}\n{CALL}", (), f"{CALL}\n{CALL}"),
        (FUNCTION, (), FUNCTION),
        ('[TOOL_CALLS]w{"t": "</think>"}', (), '[TOOL_CALLS]w{"t": "</think>"}'),
        ('{"answer": "</think>"}', (), '{"answer": "</think>"}'),
        ("<think>a <tool_call> b</think>c", ("a <tool_call> b",), "c"),
        (f"perhaps {CALL} no</think>4", (f"perhaps {CALL} no",), "4"),
        (ANALYSIS + FINAL, ("hmm 5",), "It is 7"),
        (ANALYSIS, ("hmm 5",), None),
        (ANALYSIS + "<|end|>", ("hmm 5",), None),
        (ANALYSIS + "<|end|><|start|>assistant" + TO_ADD, ("hmm 5",), ""),
        ("<|channel|>final<|message|>It is", (), "It is"),
    ],
)
def test_reasoning_and_answer_of_a_table_of_texts(text, thoughts, answer):
    parts = split(text)
    assert (parts.thoughts, parts.answer) == (thoughts, answer)
    assert answer_of(text) == parts.final == (answer or "")
    assert parts.reasoning == ("\n".join(thoughts) if thoughts else None)


words = st.text(alphabet="ab 1\n{}.", max_size=12)


@given(st.sampled_from(REASONING_MARKS), words, words, words)
def test_reasoning_is_what_its_marks_enclose_and_unfinished_reasoning_has_no_answer(
    marks, before, thought, answer
):
    opening, closing = marks
    assert answer_of(f"{opening}{thought}{closing}{answer}") == answer
    assert answer_of(f"{thought}{closing}{answer}") == answer
    assert split(f"{before}{opening}{thought}{answer}").answer is None
    text = f"{before}{opening}{thought}{closing}{answer}"
    (block,) = reasoning_blocks(text)
    assert text[block.start : block.end] == block.opening + block.inner + block.closing
    assert (block.opening, block.inner, block.closing) == (opening, thought, closing)


@pytest.mark.parametrize(
    ("text", "well_formed"),
    [
        ("<think>a</think>b", True),
        ("a</think>b", True),  # the prompt opened it
        (" \n<think>a</think>b", True),
        (ANALYSIS + FINAL, True),
        ("b", False),
        ("<think>a", False),
        ("so <think>a</think>b", False),
        ("<think>a</think>b</think>c", False),
        ("<think>a<think>b</think>c", False),
        (ANALYSIS, False),
    ],
)
def test_a_well_formed_reply_is_one_stretch_of_reasoning_and_an_answer(text, well_formed):
    assert is_well_formed(text) is well_formed


def test_the_end_of_a_prompt_may_open_the_reasoning():
    assert opening_of("<|im_start|>assistant\n<think>\n") == "<think>\n"
    assert opening_of("<think>\n\n</think>\n\n") == ""
    assert opening_of("assistant") == ""


def test_messages_of_harmony_have_a_channel_and_perhaps_a_recipient():
    first, second = harmony_messages(ANALYSIS + "<|end|><|start|>assistant" + TO_ADD)
    assert (first.channel, first.recipient, first.body) == ("analysis", None, "hmm 5")
    assert (second.channel, second.recipient) == ("commentary", "functions.add")
    assert second.body == '{"a": 1}' and second.ended


def test_a_reply_is_cut_at_the_first_stop_string():
    assert cut_at_stop("12, because", [","]) == "12"
    assert cut_at_stop("a END b STOP", ["STOP", "END"]) == "a "
    assert cut_at_stop("a END", "END") == "a "
    assert cut_at_stop("a", None) == "a"
