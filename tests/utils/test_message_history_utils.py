"""Truncation of message histories to a token limit."""

from __future__ import annotations

import string

import pytest

from atroposlib.testing.tiny import char_tokenizer
from atroposlib.utils.message_history_utils import (
    ensure_trajectory_token_limit,
    strip_thinking,
    truncate_thinking,
)
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer


@pytest.fixture(scope="module")
def tokenizer():
    return char_tokenizer(alphabet=string.printable)


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("<think>a</think>b", "b"),
        ("x<think>a</think>b<think>c</think>", "xb<think>c</think>"),
        ("</think>a<think>b", "</think>a<think>b"),
        ("</think>a<think>b</think>c", "</think>ac"),
        ("<think>a", "<think>a"),
        ("a", "a"),
    ],
)
def test_the_first_reasoning_block_is_removed(text, stripped):
    assert strip_thinking(text) == stripped


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [
        ("<think>\nabc\n</think>\nd", 3, "<think>\nabc\n</think>\nd"),
        ("x<think>abc</think>d", 3, "x<think>\nabc\n</think>d"),
        ("<think>abc\n\ndef</think>g", 4, "<think>\n... def\n</think>g"),
        ("<think>abcdef</think>g", 2, "<think>\n... ef\n</think>g"),
        ("<think>a\n\nbcdef</think>g", 2, "<think>\n... ef\n</think>g"),
        ("<think> \n </think>g", 5, "<think></think>g"),
        ("<think>abc</think>g", 0, "<think></think>g"),
        ("</think><think>abc", 1, "</think><think>abc"),
        ("no reasoning", 1, "no reasoning"),
    ],
)
def test_truncated_reasoning_keeps_its_end(tokenizer, text, limit, short):
    assert truncate_thinking(text, tokenizer, limit) == short


def test_reasoning_is_kept_when_the_tokenizer_fails(caplog):
    class Broken:
        def encode(self, text, add_special_tokens=True):
            raise RuntimeError("no vocabulary")

    assert truncate_thinking("<think>abc</think>d", Broken(), 1) == "<think>abc</think>d"
    assert "no vocabulary" in caplog.text


def history(turns: int, answer: str) -> list[dict[str, str]]:
    middle = [
        message
        for i in range(turns)
        for message in (
            {"role": "environment", "content": f"o{i}"},
            {"role": "agent", "content": f"a{i}"},
        )
    ]
    last = [{"role": "environment", "content": "o"}, {"role": "agent", "content": answer}]
    return [{"role": "system", "content": "s"}, *middle, *last]


@pytest.fixture
def step(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}agent:{% endif %}"
    )
    messages = [history(3, "x"), history(3, "yy")]
    rows = [tokenize_for_trainer(tokenizer, chat) for chat in messages]
    tokens = [row["tokens"] for row in rows]
    return {
        "seed": 0,
        "messages": messages,
        "tokens": tokens,
        "masks": [row["masks"] for row in rows],
        "scores": [0.5, 1.0],
        "parsed_actions": [1, 2],
        "advantages": [[float(i) for i, _ in enumerate(row)] for row in tokens],
        "inference_logprobs": [[-0.5] * len(row) for row in tokens],
        "overrides": [{"set_advantage_to_zero": True}, {}],
        "group_overrides": {"group_size": 2},
    }


def test_a_step_within_the_limit_is_unchanged(tokenizer, step):
    longest = max(map(len, step["tokens"]))
    assert ensure_trajectory_token_limit([step], tokenizer, longest) == [step]


def test_the_oldest_pairs_are_removed_equally_and_first_and_last_messages_kept(
    tokenizer, step
):
    longest = max(map(len, step["tokens"]))
    before = [list(chat) for chat in step["messages"]]
    (short,) = ensure_trajectory_token_limit([step], tokenizer, longest - 1)
    assert short["messages"] == [chat[:1] + chat[3:] for chat in before]
    assert short["messages"][0][-2:] == before[0][-2:]
    assert step["messages"] == before
    for i, chat in enumerate(short["messages"]):
        assert short["tokens"][i] == tokenize_for_trainer(tokenizer, chat)["tokens"]
        assert len(short["masks"][i]) == len(short["tokens"][i]) <= longest - 1
    removed = len(step["tokens"][0]) - len(short["tokens"][0])
    assert short["advantages"][0][-1] == step["advantages"][0][-1]
    assert len(short["advantages"][0]) == len(step["advantages"][0]) - removed
    assert short["masks"] == [
        tokenize_for_trainer(tokenizer, chat)["masks"] for chat in short["messages"]
    ]
    assert short["inference_logprobs"] is None  # sampled after turns that are gone
    for name in ("scores", "overrides", "group_overrides", "parsed_actions", "seed"):
        assert short[name] == step[name]


def test_the_first_and_the_last_two_messages_are_always_kept(tokenizer, step):
    shortest = [chat[:1] + chat[-2:] for chat in step["messages"]]
    bound = max(len(tokenize_for_trainer(tokenizer, c)["tokens"]) for c in shortest)
    (short,) = ensure_trajectory_token_limit([step], tokenizer, bound)
    assert short["messages"] == shortest
    assert ensure_trajectory_token_limit([step], tokenizer, bound - 1) == []


def test_a_single_turn_is_removed_when_no_pair_is_left(tokenizer, step):
    alone = {**step, "messages": [chat[:1] + chat[2:] for chat in step["messages"]]}
    rows = [tokenize_for_trainer(tokenizer, chat) for chat in alone["messages"]]
    alone.update(tokens=[row["tokens"] for row in rows], masks=[row["masks"] for row in rows])
    bound = max(map(len, alone["tokens"])) - 1
    alone.pop("advantages")
    (short,) = ensure_trajectory_token_limit([alone], tokenizer, bound)
    assert short["messages"] == [chat[:1] + chat[2:] for chat in alone["messages"]]
    assert "advantages" not in short


@pytest.mark.parametrize("name", ["messages", "tokens", "masks", "seed", "parsed_actions"])
def test_an_incomplete_step_is_skipped_with_a_warning(tokenizer, step, name, caplog):
    incomplete = {key: value for key, value in step.items() if key != name}
    assert ensure_trajectory_token_limit([incomplete, step], tokenizer, 10_000) == [step]
    assert name in caplog.text
