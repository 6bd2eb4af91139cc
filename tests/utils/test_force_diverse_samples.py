"""Groups whose answers begin with distinct tokens."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest

from atroposlib.errors import ConfigError, TokensMissing
from atroposlib.testing.tiny import char_tokenizer
from atroposlib.utils.force_diverse_samples import (
    draw_distinct,
    generate_with_diverse_first_tokens,
)

CHAT = [{"role": "user", "content": "hi"}]
PROMPT = "<|user|>hi<|end|><|assistant|>so: "


class Server:
    """Answers as the completions API does; the first tokens are scripted."""

    def __init__(self, first):
        self.first = first
        self.asked = []

    async def completion(self, **kwargs):
        self.asked.append(kwargs)
        tops = [self.first] if self.first and kwargs.get("logprobs") else None
        choice = SimpleNamespace(
            text=f" after {kwargs['prompt'][-1]}", logprobs=SimpleNamespace(top_logprobs=tops)
        )
        return SimpleNamespace(choices=[choice])


def env(first) -> SimpleNamespace:
    return SimpleNamespace(server=Server(first), tokenizer=char_tokenizer())


async def test_each_answer_begins_with_a_different_token():
    made = env({"a": -0.1, "b": -3.0, "c": -9.0})
    answers = await generate_with_diverse_first_tokens(made, CHAT, "so: ", n=3, max_tokens=8)
    assert sorted(answers) == ["a after a", "b after b", "c after c"]
    first, *rest = made.server.asked
    assert (first["prompt"], first["logprobs"], first["max_tokens"]) == (PROMPT, 20, 1)
    assert sorted(ask["prompt"] for ask in rest) == [PROMPT + token for token in "abc"]
    assert {ask["max_tokens"] for ask in rest} == {7}
    assert rest[0]["top_p"] == 0.3
    assert rest[0]["extra_body"] == {"min_p": 0.5, "repetition_penalty": 1.05}


async def test_the_number_of_answers_is_bounded_by_the_distinct_first_tokens(caplog):
    made = env({"a": -0.1, "<|end|>": -1.0})
    answers = await generate_with_diverse_first_tokens(made, CHAT, n=5)
    assert sorted(answers) == ["", "a after a"]
    assert "2 first tokens; 5 wanted" in caplog.text


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"n": 0}, {"max_tokens": 0}])
async def test_unusable_settings_are_rejected(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        await generate_with_diverse_first_tokens(env({"a": 0.0}), CHAT, **wrong)


async def test_a_server_without_logprobs_is_named_as_the_reason():
    with pytest.raises(TokensMissing, match="logprobs"):
        await generate_with_diverse_first_tokens(env({}), CHAT)


def test_likelier_tokens_are_drawn_more_often_and_none_twice():
    logprobs = {"a": math.log(0.7), "b": math.log(0.2), "c": math.log(0.1), "d": -math.inf}
    rng = random.Random(0)
    draws = [draw_distinct(logprobs, 2, 1.0, rng) for _ in range(4000)]
    assert all(len(set(draw)) == 2 for draw in draws)
    share = sum(draw[0] == "a" for draw in draws) / len(draws)
    assert share == pytest.approx(0.7, abs=0.03)
    second = [draw[1] for draw in draws if draw[0] == "a"]
    assert second.count("b") / len(second) == pytest.approx(2 / 3, abs=0.04)
    assert not any("d" in draw for draw in draws)
    assert draw_distinct({"a": -9999.0, "b": 0.0}, 2, 1e-3, rng) == ["b", "a"]
