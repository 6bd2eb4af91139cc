"""Health, the version header, errors and requests of other sites."""

from __future__ import annotations

import pytest


async def test_the_health_models_and_server_info_routes_answer(http):
    assert (await http.get("/health")).json() == {"status": "ok", "paused": False}
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 256)
    info = (await http.get("/server_info")).json()
    assert (info["engine"], info["weight_version"], info["paused"]) == (
        "atropos-local",
        0,
        False,
    )
    assert {"running", "waiting", "generated_tokens_total"} <= info.keys()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"n": 0}, "n: "),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [5, 999]}, "token ids lie in"),
        ({"prompt": [5] * 256}, "no space"),
        ({"logprobs": 21}, "at most 20"),
        ({"max_tokens": 0}, "needs prompt_logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty=0.5 is not supported"),
        ({"echo": True}, "echo"),
    ],
)
async def test_bad_input_is_a_400_in_the_openai_shape(http, body, says):
    reply = await http.post("/v1/completions", json={"prompt": "abc", **body})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert says in error["message"]
    assert error["type"] == "invalid_request_error" and error["code"] == 400
    assert reply.headers["X-Weight-Version"] == "0"


async def test_a_request_from_another_web_site_is_rejected(http):
    reply = await http.post("/pause", headers={"Sec-Fetch-Site": "cross-site"})
    assert reply.status_code == 403
    assert (await http.get("/is_paused")).json()["is_paused"] is False
