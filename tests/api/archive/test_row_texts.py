"""Texts of rows: from kept messages, else decoded; rewards by name; agents."""

from __future__ import annotations

from atroposlib.api.archive.row_texts import (
    MAX_NUMBERS,
    prompt_and_answer,
    reported_numbers,
    text_of_turn,
    texts_of_rows,
)
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer
from atroposlib.wire.binary import pack_group

TOKENIZER = char_tokenizer(ASCII_ALPHABET)
CALL = {"function": {"name": "add", "arguments": "{}"}}


def packed(**fields):
    tokens = [TOKENIZER.encode(text, add_special_tokens=False) for text in ("ab12", "ab3")]
    masks = [[-100, -100, *row[2:]] for row in tokens]
    return pack_group({"tokens": tokens, "masks": masks, "scores": [0.0, 1.0], **fields})


def test_tokens_are_decoded_from_the_first_trained_one_on():
    rows = texts_of_rows({5: packed()}, [(5, 1), (5, 0)], lambda: TOKENIZER)
    assert [(row.prompt, row.answer) for row in rows] == [("ab", "3"), ("ab", "12")]
    (row,) = texts_of_rows({5: packed()}, [(5, 0)], lambda: TOKENIZER, answer_tokens=1)
    assert (row.prompt, row.answer) == ("", "1")


def test_rows_without_bytes_or_tokenizer_have_no_text():
    rows = texts_of_rows({5: packed(), 6: b"damaged"}, [(5, 0), (5, 9), (6, 0)], lambda: None)
    assert all(row.prompt is None and row.answer is None for row in rows)


def test_kept_messages_need_no_tokenizer():
    messages = [
        [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": reply}]
        for reply in ("2", "3")
    ]
    about = {"endpoint": "white", "named_rewards": [{"exact": 1.0}, {"exact": float("0")}]}
    group = packed(messages=messages, metadata=about)

    def decoder():
        raise AssertionError("not needed")

    first, second = texts_of_rows({1: group}, [(1, 0), (1, 1)], decoder)
    assert first[:-1] == ("1+1", "2", messages[0], {"exact": 1.0}, "white")
    assert first.metadata == {"endpoint": "white"}
    assert second.answer == "3"


def test_rewards_of_rows_are_those_of_their_metrics_without_the_score():
    about = {"rows": [{"metrics": {"reward": 1.0, "short": 0.5}}, {}]}
    first, second = texts_of_rows({1: packed(metadata=about)}, [(1, 0), (1, 1)], lambda: None)
    assert (first.rewards, second.rewards) == ({"short": 0.5}, {})


def test_calls_of_tools_and_parts_are_text():
    assert text_of_turn({"role": "assistant", "content": "", "tool_calls": [CALL]}) == (
        "tool call: add({})"
    )
    parts = [{"type": "text", "text": "see"}, {"type": "image_url"}]
    assert text_of_turn({"role": "user", "content": parts}) == "see"
    assert prompt_and_answer([{"role": "user", "content": "only"}]) == ("only", None)


def test_numbers_are_finite_and_few():
    assert reported_numbers({"a": 1, "b": float("inf"), "c": "x"}) == {"a": 1.0}
    assert len(reported_numbers({str(i): i for i in range(99)})) == MAX_NUMBERS
    assert reported_numbers(None) == {}
