"""Streams against plain responses."""

from __future__ import annotations

from atroposlib.inference.engine.request import FinishReason, Output
from atroposlib.inference.http.responses import (
    chat_logprobs,
    completion_logprobs,
    generate_logprobs,
)
from atroposlib.inference.http.service import Detokenizer
from tests.inference.helpers import events, ok

CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5, "seed": 1}


async def test_a_chat_stream_adds_up_to_the_plain_reply(http):
    options = {**CHAT, "n": 2, "max_tokens": 12, "stop": ["a", "zz"]}
    whole = await ok(http, "/v1/chat/completions", **options, return_token_ids=True)
    chunks = await events(
        http, "/v1/chat/completions", **options, return_token_ids=True, logprobs=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert chunks[-1]["usage"] == whole["usage"]
    for wanted in whole["choices"]:
        index = wanted["index"]
        pieces = [c["choices"][0] for c in chunks if c["choices"]]
        mine = [piece for piece in pieces if piece["index"] == index]
        text = "".join(piece["delta"].get("content", "") for piece in mine)
        assert text == wanted["message"]["content"]
        assert sum((piece.get("token_ids", []) for piece in mine), []) == wanted["token_ids"]
        assert [p["finish_reason"] for p in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == wanted["finish_reason"]
        assert mine[0]["logprobs"]["content"][0]["logprob"] < 0


async def test_a_completion_stream_adds_up_to_the_plain_reply(http):
    options = {"prompt": "abc", "max_tokens": 8, "seed": 3}
    whole = await ok(http, "/v1/completions", **options)
    chunks = await events(http, "/v1/completions", **options, logprobs=0)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == whole["choices"][0]["text"]


async def test_a_refused_stream_is_a_plain_400(http):
    reply = await http.post("/v1/chat/completions", json={**CHAT, "n": 0, "stream": True})
    assert reply.status_code == 400 and "error" in reply.json()


class Letters:
    """Token 0 is "a", token 1 "b" and so on."""

    def decode(self, tokens):
        return "".join(chr(ord("a") + token) for token in tokens)


def test_logprobs_of_a_completion_are_parallel_lists():
    found = completion_logprobs(
        [0, 1], [-1.0, -2.0], [{0: -1.0}, {2: -0.5}], Detokenizer(Letters())
    )
    assert found == {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.0, -2.0],
        "top_logprobs": [{"a": -1.0}, {"c": -0.5}],
        "text_offset": [0, 1],
    }


def test_logprobs_of_a_chat_hold_one_entry_per_token():
    (entry,) = chat_logprobs([0], [-1.0], [{1: -2.0}], Detokenizer(Letters()))["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -1.0, [97])
    assert [other["token"] for other in entry["top_logprobs"]] == ["b"]


def test_logprobs_of_generate_begin_with_the_sampled_token():
    output = Output([0], [-1.0], FinishReason.STOP, [], [{1: -0.5, 0: -1.0}])
    assert generate_logprobs(output, 2) == [[{0: -1.0, 1: -0.5}]]
    assert generate_logprobs(output, 0) == [[{0: -1.0}]]
    assert list(generate_logprobs(output, 2)[0][0]) == [0, 1]
