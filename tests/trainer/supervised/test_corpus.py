"""Tests of rows from lines of text: training starts exactly at the end of the prefix."""

from __future__ import annotations

import json
import string

import pytest

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import char_tokenizer
from example_trainer.data.rows import Row
from example_trainer.supervised import corpus

TOKENIZER = char_tokenizer()
USER, AI, END = "<|user|>", "<|assistant|>", "<|end|>"


def told(rows: list[Row], tokenizer=TOKENIZER) -> list[tuple[str, str]]:
    """Return (whole text, text of the trained tokens) of each row."""
    return [
        (
            tokenizer.decode(row.tokens),
            tokenizer.decode([row.labels[j] for j in row.trained]),
        )
        for row in rows
    ]


def turn(role, content):
    return {"role": role, "content": content}


def sft(line, tokenizer=TOKENIZER, **more):
    return told(corpus.sft_rows(tokenizer, line, "g", **more), tokenizer)


def test_the_completion_is_trained_and_nothing_of_the_prefix():
    line = {"prefix": f"{USER}2+2?{AI}", "completion": f"4{END}", "score": 1.0}
    assert sft(line) == [(f"{USER}2+2?{AI}4{END}", f"4{END}")]
    (row,) = corpus.sft_rows(TOKENIZER, line, "g")
    assert row.labels[: row.trained[0]] == [-100] * row.trained[0]
    assert [row.labels[j] for j in row.trained] == [row.tokens[j + 1] for j in row.trained]


def test_a_completion_may_be_ended():
    line = {"prefix": "a", "completion": "b"}
    assert sft(line) == [("ab", "b")]
    assert sft(line, end_completions=True) == [(f"ab{END}", f"b{END}")]
    ended = {"prefix": "a", "completion": f"b{END}"}
    assert sft(ended, end_completions=True) == [(f"ab{END}", f"b{END}")]


class Merging:
    """Merges "ab" into one token, as byte pair encodings do across a boundary."""

    bos_token_id, bos_token = 9, "^"
    vocabulary = {"ab": 1, "a": 2, "b": 3, "c": 4, "^": 9}

    def __call__(self, text, add_special_tokens=True):
        ids = [9] if add_special_tokens else []
        while text:
            piece = text[:2] if text[:2] in self.vocabulary else text[0]
            ids.append(self.vocabulary[piece])
            text = text[len(piece) :]
        return {"input_ids": ids}


@pytest.mark.parametrize(
    ("prefix", "completion", "tokens", "labels"),
    [
        ("c", "ab", [9, 4, 1], [-100, 1]),
        ("ca", "b", [9, 4, 2, 3], [-100, -100, 3]),  # the prefix keeps its own tokens
        ("^c", "ab", [9, 4, 1], [-100, 1]),  # begins with what would be put before it
        ("", "ab", [9, 1], [1]),
    ],
)
def test_tokens_do_not_straddle_the_boundary(prefix, completion, tokens, labels):
    row = corpus.completion_row(Merging(), prefix, completion)
    assert (row.tokens, row.labels) == (tokens, labels)


def test_every_turn_of_the_assistant_is_trained_in_one_row():
    messages = [turn("user", "a"), turn("assistant", "b"), turn("user", "c")]
    messages += [turn("assistant", "d")]
    whole = f"{USER}a{END}{AI}b{END}{USER}c{END}{AI}d{END}"
    assert sft({"messages": messages}) == [(whole, f"b{END}d{END}")]


def test_a_conversation_may_begin_with_the_assistant():
    messages = [turn("assistant", "a"), turn("user", "b"), turn("assistant", "c")]
    whole = f"{AI}a{END}{USER}b{END}{AI}c{END}"
    assert sft({"messages": messages}) == [(whole, f"a{END}c{END}")]


def test_a_template_that_drops_earlier_reasoning_gives_a_row_per_turn():
    tokenizer = char_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>"
        "{{ m['content'] if loop.last else m['content'].split('=')[-1] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    messages = [turn("user", "a"), turn("assistant", "why=b"), turn("user", "c")]
    messages += [turn("assistant", "so=d")]
    assert sft({"messages": messages}, tokenizer) == [
        (f"{USER}a{END}{AI}why=b{END}", f"why=b{END}"),
        (f"{USER}a{END}{AI}b{END}{USER}c{END}{AI}so=d{END}", f"so=d{END}"),
    ]
    with pytest.raises(ConfigError, match="with a prefix"):
        line = {"pos": messages, "neg": [messages[0], turn("assistant", "c")]}
        corpus.pair_rows(tokenizer, line, "g")


def test_a_pair_of_texts_shares_its_prefix():
    line = {"prefix": f"{USER}a{AI}", "pos": f"b{END}", "score": 1, "neg": "c"}
    rows = corpus.pair_rows(TOKENIZER, line, "g")
    assert told(rows) == [(f"{USER}a{AI}b{END}", f"b{END}"), (f"{USER}a{AI}c", "c")]
    assert rows[0].group == rows[1].group


def test_only_the_different_turns_of_a_conversation_pair_are_trained():
    shared = [turn("user", "a"), turn("assistant", "b"), turn("user", "c")]
    line = {"pos": [*shared, turn("assistant", "d")], "neg": [*shared, turn("assistant", "e")]}
    start = f"{USER}a{END}{AI}b{END}{USER}c{END}{AI}"
    assert told(corpus.pair_rows(TOKENIZER, line, "g")) == [
        (f"{start}d{END}", f"d{END}"),
        (f"{start}e{END}", f"e{END}"),
    ]


def written(tmp_path, *lines):
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return str(path)


def read(path, max_tokens=8):
    return corpus.read(
        path, lambda line, group: corpus.sft_rows(TOKENIZER, line, group), max_tokens
    )


def test_too_long_or_untrainable_lines_are_counted(tmp_path):
    path = written(
        tmp_path,
        {"prefix": "a", "completion": "b"},
        {"prefix": "a", "completion": "b" * 8},
        {"prefix": "a", "completion": ""},
        {"messages": [turn("user", "a")]},
    )
    found = read(path)
    assert len(found.examples) == 1
    assert found.left_out == {"longer than 8 tokens": 1, "nothing to train": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prefix": "a", "completion": "b"}\n{"prefix": "a"}', "line 2: 'completion'"),
        ("{", "line 1: no JSON"),
        ("[]", "line 1: not an object"),
        ('{"messages": "hello"}', "list of messages"),
        ("", "no line to train on"),
    ],
)
def test_invalid_line_is_named_in_the_error(tmp_path, text, message):
    path = tmp_path / "lines.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(str(path))


def test_a_tokenizer_without_a_template_is_named(tmp_path):
    tokenizer = char_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="chat template"):
        corpus.sft_rows(tokenizer, {"messages": [turn("assistant", "a")]}, "g")


def test_reasoning_that_the_template_drops_is_trained_behind_the_prompt_of_sampling():
    drops = char_tokenizer(alphabet=string.printable)
    drops.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'].split('</think>')[-1] }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
    )
    asked = [turn("user", "1+1?")]
    told_as = "<think>one more</think>2"
    (row,) = sft({"messages": [*asked, turn("assistant", told_as)]}, drops)
    assert row == (
        f"{USER}1+1?{END}{AI}<think>one more</think>2{END}",
        f"one more</think>2{END}",
    )
    sides = {
        "pos": [*asked, turn("assistant", told_as)],
        "neg": [*asked, turn("assistant", "<think>no idea</think>2")],
    }
    better, worse = corpus.pair_rows(drops, sides, "g")
    assert better.tokens != worse.tokens  # equal answers, other reasoning
