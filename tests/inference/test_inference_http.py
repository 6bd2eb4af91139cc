"""The HTTP surface in process: shapes, errors, control routes, streams, disconnects."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys

import httpx
import pytest

from atroposlib.inference.engine.engine import PauseMode
from atroposlib.inference.http.app import create_app
from tests.inference.helpers import WAIT_S, fresh_logprobs

CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5, "seed": 1}


@pytest.fixture
async def http(engine):
    transport = httpx.ASGITransport(app=create_app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        yield client


async def ok(http, path, **body):
    reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def events(http, path, **body):
    """Parsed chunks of a stream, which must end with the terminator."""
    reply = await http.post(path, json={**body, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_health_models_and_server_info(http):
    assert (await http.get("/health")).json() == {"status": "ok"}
    (model,) = (await http.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 256)
    info = (await http.get("/server_info")).json()
    assert (info["engine"], info["weight_version"], info["paused"]) == (
        "atropos-local",
        0,
        False,
    )
    assert {"running", "waiting", "generated_tokens_total"} <= info.keys()


async def test_chat_returns_tokens_logprobs_usage_and_versions(http, reference):
    body = await ok(
        http, "/v1/chat/completions", **CHAT, n=3, logprobs=True, top_logprobs=2,
        return_token_ids=True, temperature=0.7,
    )  # fmt: skip
    prompt = body["prompt_token_ids"]
    assert reference.tokenizer.decode(prompt) == "<|user|>abc<|end|><|assistant|>"
    assert body["object"] == "chat.completion" and body["model"] == "tiny"
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    for choice in body["choices"]:
        tokens, content = choice["token_ids"], choice["logprobs"]["content"]
        fresh = fresh_logprobs(reference, prompt, tokens, temperature=0.7).tolist()
        assert [entry["logprob"] for entry in content] == pytest.approx(fresh, abs=1e-4)
        assert all(len(entry["top_logprobs"]) == 2 for entry in content)
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] in ("stop", "length")
        assert choice["weight_versions"] == [{"version": 0, "start": 0, "end": len(tokens)}]
    produced = sum(len(choice["token_ids"]) for choice in body["choices"])
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": produced,
        "total_tokens": len(prompt) + produced,
    }


async def test_completions_take_text_and_tokens_one_or_several(http):
    text = await ok(http, "/v1/completions", prompt="abc", max_tokens=3, return_token_ids=True)
    assert text["choices"][0]["prompt_token_ids"] == [5, 6, 7]
    several = await ok(
        http, "/v1/completions", prompt=[[5, 6], [7]], n=2, max_tokens=3, logprobs=1
    )
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    logprobs = several["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 3
    assert len(logprobs["top_logprobs"][0]) == 1 and logprobs["text_offset"][0] == 0


async def test_generate_has_the_shape_of_vllm_s_demo_server(http, reference):
    body = await ok(
        http, "/generate", prompt={"prompt_token_ids": [5, 6, 7]}, logprobs=0, n=2,
        max_tokens=4, prompt_logprobs=1, unknown_field="tolerated",
    )  # fmt: skip
    assert body["prompt_token_ids"] == [5, 6, 7]
    for tokens, logprobs in zip(body["token_ids"], body["logprobs"]):
        fresh = fresh_logprobs(reference, [5, 6, 7], tokens).tolist()
        assert [next(iter(at[0])) for at in logprobs] == [str(token) for token in tokens]
        assert [next(iter(at[0].values())) for at in logprobs] == pytest.approx(
            fresh, abs=1e-4
        )
    assert body["prompt_logprobs"][0] is None
    assert next(iter(body["prompt_logprobs"][1][0])) == "6"
    assert (
        len(body["text"]) == len(body["finish_reasons"]) == len(body["weight_versions"]) == 2
    )


async def test_generate_without_logprobs_leaves_them_out(http):
    body = await ok(http, "/generate", prompt="abc", max_tokens=2)
    assert "logprobs" not in body and "prompt_logprobs" not in body


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"n": 0}, "n: "),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [5, 999]}, "token ids lie in"),
        ({"prompt": [5] * 256}, "no room"),
        ({"logprobs": 21}, "at most 20"),
        ({"max_tokens": 0}, "asks for nothing"),
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


async def test_another_model_name_is_a_404(http):
    reply = await http.post("/v1/completions", json={"prompt": "abc", "model": "other"})
    assert reply.status_code == 404 and "'tiny' is" in reply.json()["error"]["message"]


async def test_max_tokens_beyond_the_context_is_cut_to_what_fits(http):
    body = await ok(http, "/generate", prompt="a" * 250, max_tokens=100, ignore_eos=True)
    assert len(body["token_ids"][0]) == 6 and body["finish_reasons"] == ["length"]


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


async def test_a_request_of_another_web_site_is_refused(http):
    reply = await http.post("/pause", headers={"Sec-Fetch-Site": "cross-site"})
    assert reply.status_code == 403
    assert (await http.get("/is_paused")).json()["is_paused"] is False


async def test_new_weights_show_in_header_body_and_info(http, other_dir, other_reference):
    reply = await http.post(
        "/update_weights_from_disk",
        json={"model_path": str(other_dir), "weight_version": 4},
    )
    assert reply.json()["success"] is True and reply.headers["X-Weight-Version"] == "4"
    sampled = await http.post(
        "/generate", json={"prompt": "abc", "logprobs": 0, "max_tokens": 4}
    )
    assert sampled.headers["X-Weight-Version"] == "4"
    body = sampled.json()
    tokens = body["token_ids"][0]
    found = [next(iter(at[0].values())) for at in body["logprobs"][0]]
    fresh = fresh_logprobs(other_reference, [5, 6, 7], tokens).tolist()
    assert found == pytest.approx(fresh, abs=1e-4)
    assert body["weight_versions"] == [[{"version": 4, "start": 0, "end": len(tokens)}]]


async def test_a_failed_reload_says_that_the_old_weights_stay(http, tmp_path):
    body = {"model_path": str(tmp_path / "absent"), "weight_version": 4}
    reply = await http.post("/update_weights_from_disk", json=body)
    assert reply.status_code == 400 and reply.json()["success"] is False
    assert "weights unchanged, still version 0" in reply.json()["message"]
    assert reply.headers["X-Weight-Version"] == "0"


async def test_vllm_s_names_for_a_reload_work_too(http, other_dir):
    kwargs = {"weights_path": str(other_dir)}
    await ok(http, "/collective_rpc", method="reload_weights", kwargs=kwargs)
    await ok(http, "/update_weight_version", weight_version=8)
    assert (await http.get("/weight_info")).json()["weight_version"] == 8
    other = await http.post("/collective_rpc", json={"method": "exec", "kwargs": {}})
    assert other.status_code == 400


async def test_pause_and_resume_over_http(http):
    assert (await http.get("/is_paused")).json()["is_paused"] is False
    assert (await http.post("/pause?mode=keep")).status_code == 200
    assert (await http.get("/is_paused")).json()["is_paused"] is True
    held = asyncio.create_task(http.post("/generate", json={"prompt": "abc", "max_tokens": 2}))
    assert (await http.get("/health")).status_code == 200  # answered while one is held
    assert not held.done()
    assert (await http.post("/resume")).status_code == 200
    assert (await held).status_code == 200
    assert (await http.post("/pause?mode=nonsense")).status_code == 400


async def test_a_client_that_hangs_up_frees_its_rows(engine):
    """Driven as an ASGI server would: the disconnect arrives while the request waits."""
    engine.pause(PauseMode.WAIT)
    body = json.dumps({"prompt": "abc", "n": 3, "max_tokens": 200}).encode()
    queued: asyncio.Event = asyncio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await queued.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "path": "/generate", "raw_path": b"/generate", "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json")], "scheme": "http",
        "server": ("engine", 80), "client": ("test", 1),
    }  # fmt: skip
    serving = asyncio.create_task(create_app(engine)(scope, receive, send))

    async def three_wait():
        while engine.num_waiting < 3:
            await asyncio.sleep(0)

    await asyncio.wait_for(three_wait(), WAIT_S)
    queued.set()
    await asyncio.wait_for(serving, WAIT_S)
    engine.set_weight_version(0)  # a command behind the cancel: it has been carried out
    assert engine.num_waiting == 0


async def test_the_openai_package_is_a_client(http):
    openai = pytest.importorskip("openai")
    client = openai.AsyncOpenAI(base_url="http://engine/v1", api_key="x", http_client=http)
    chat = await client.chat.completions.create(
        model="tiny", messages=CHAT["messages"], n=2, max_tokens=4, logprobs=True,
        top_logprobs=1, extra_body={"return_token_ids": True},
    )  # fmt: skip
    assert len(chat.choices) == 2 and chat.usage.completion_tokens > 0
    entries = chat.choices[0].logprobs.content
    assert math.isfinite(entries[0].logprob) and entries[0].top_logprobs
    assert len(chat.choices[0].model_extra["token_ids"]) == len(entries)
    stream = await client.chat.completions.create(
        model="tiny", messages=CHAT["messages"], max_tokens=4, stream=True
    )
    ends = [c.choices[0].finish_reason async for c in stream if c.choices[0].finish_reason]
    assert ends in (["length"], ["stop"])
    completion = await client.completions.create(model="tiny", prompt="abc", max_tokens=3)
    assert completion.choices[0].finish_reason in ("length", "stop")
    with pytest.raises(openai.BadRequestError, match="no room"):
        await client.completions.create(model="tiny", prompt="a" * 300)


def test_the_command_line_starts_without_loading_torch():
    code = "import sys, atroposlib.inference, atroposlib.inference.cli; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "False", found.stderr
