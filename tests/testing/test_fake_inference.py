"""Fake inference server over HTTP: scripted replies, failures, aborts."""

from __future__ import annotations

import httpx

from atroposlib.testing.fake_inference import FakeInference, render_messages

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def client_of(fake: FakeInference) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(fake.app), base_url="http://fake")


async def test_the_reply_function_gets_the_rendered_prompt_and_the_index():
    fake = FakeInference(reply=lambda prompt, i: f"{len(prompt)} {i}")
    async with client_of(fake) as http:
        reply = (await http.post("/v1/chat/completions", json={**HELLO, "n": 2})).json()
    length = len(render_messages(HELLO["messages"]))
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert texts == [f"{length} 0", f"{length} 1"]
    assert fake.paths == ["/v1/chat/completions"]


async def test_limits_stops_and_aborts_cut_a_reply():
    fake = FakeInference(reply=lambda prompt, i: "one two")
    body = {"prompt": "count", "max_tokens": 99}

    async def reply(http, **params):
        posted = await http.post("/v1/completions", json={**body, **params})
        (choice,) = posted.json()["choices"]
        return choice["text"], choice["finish_reason"]

    async with client_of(fake) as http:
        assert await reply(http) == ("one two", "stop")
        assert await reply(http, max_tokens=3) == ("one", "length")
        assert await reply(http, stop=[" "]) == ("one", "stop")
        fake.abort_next.append(2)
        assert await reply(http) == ("on", "abort")


async def test_scripted_failures_and_health_states_are_consumed_in_order():
    fake = FakeInference()
    fake.fail_next.append(503)
    fake.health_next.append(False)
    async with client_of(fake) as http:
        statuses = [
            (await http.post("/v1/chat/completions", json=HELLO)).status_code for _ in range(2)
        ]
        health = [(await http.get("/health")).status_code for _ in range(2)]
    assert (statuses, health) == ([503, 200], [503, 200])


async def test_routes_exist_by_shape_and_report_the_weight_version():
    fake = FakeInference(shapes={"scale_out"})
    fake.weight_version = 4
    async with client_of(fake) as http:
        assert (await http.post("/generate", json={"prompt": "x"})).status_code == 404
        body = {"token_ids": [1], "sampling_params": {"max_tokens": 1}}
        reply = await http.post("/inference/v1/generate", json=body)
        assert (await http.get("/weight_info")).json() == {"weight_version": 4}
    assert (reply.status_code, reply.headers["X-Weight-Version"]) == (200, "4")


def test_the_fake_server_listens_on_a_socket():
    with FakeInference().running() as url:
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "fake"
