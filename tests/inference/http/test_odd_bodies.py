"""Odd numbers, depths and texts in every field of the inference server: no 5xx."""

from __future__ import annotations

import json

import pytest

from tests.inference.helpers import ok
from tests.odd_numbers import ODD, places, with_number

SAMPLING = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 1,
    "max_tokens": 1,
    "min_tokens": 0,
    "seed": 1,
    "stop_token_ids": [1],
    "presence_penalty": 0.0,
    "min_p": 0.0,
    "logit_bias": {"1": 0.0},
    "best_of": 1,
}
MESSAGES = [{"role": "user", "content": "abc", "extra": 1}]
BODIES = {
    "/v1/chat/completions": SAMPLING | {"messages": MESSAGES, "top_logprobs": 1},
    "/v1/completions": SAMPLING | {"prompt": [5, 6], "logprobs": 1},
    "/generate": SAMPLING | {"prompt": {"prompt_token_ids": [5, 6]}, "prompt_logprobs": 1},
    "/pause": {"timeout_s": 1.0, "resume_after_s": 1.0},
    "/update_weights_from_disk": {"model_path": "nowhere", "weight_version": 1},
    "/init_weights_update_group": {
        "master_address": "x",
        "master_port": 0,
        "rank_offset": 1,
        "world_size": 1,
        "timeout_s": 1.0,
    },
    "/update_weights_from_distributed": {
        "names": ["w"],
        "dtypes": ["float32"],
        "shapes": [[1]],
        "weight_version": 1,
    },
}


@pytest.mark.parametrize("path", BODIES)
async def test_an_odd_number_is_bounded_or_refused(http, path):
    headers = {"content-type": "application/json"}
    for where in places(BODIES[path]):
        for number in ODD:
            text = with_number(BODIES[path], where, number)
            reply = await http.post(path, content=text, headers=headers)
            assert reply.status_code < 500, (where, number[:30], reply.text)
    await http.post("/resume")
    await ok(http, "/v1/completions", prompt=[5, 6], max_tokens=1)


TEXTS = ("\ud800", "\udfff", "a\x00b")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "TEXT"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "TEXT", "content": "a"}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "TEXT"}]}]},
        ),
        ("/v1/chat/completions", {"messages": MESSAGES, "stop": ["TEXT"]}),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "chat_template_kwargs": {"a": "TEXT"}},
        ),
        ("/v1/completions", {"prompt": "TEXT"}),
        ("/v1/completions", {"prompt": ["a", "TEXT"]}),
        ("/v1/completions", {"prompt": "a", "model": "TEXT"}),
        ("/generate", {"prompt": "TEXT"}),
        ("/tokenize", {"prompt": "TEXT"}),
    ],
)
async def test_half_a_surrogate_pair_is_refused(http, path, body, text):
    written = json.dumps(body | {"max_tokens": 1}).replace("TEXT", json.dumps(text)[1:-1])
    headers = {"content-type": "application/json"}
    reply = await http.post(path, content=written, headers=headers)
    assert reply.status_code < 500, reply.text


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_nested_100_000_deep_is_refused(http, path):
    text = '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}"
    headers = {"content-type": "application/json"}
    assert (await http.post(path, content=text, headers=headers)).status_code < 500
