"""The HTTP surface in process: shapes, errors, control routes, streams, disconnects."""

from __future__ import annotations

import math

import httpx
import pytest

from atroposlib.generation.engines.vllm import CompletionsRoute, DemoRoute
from atroposlib.generation.sampling.reply_form import ReplyPart
from atroposlib.inference.http.app import create_app
from atroposlib.wire.routing import experts_of
from tests.inference.helpers import fresh_logprobs, ok

CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5, "seed": 1}


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


async def test_completions_accept_one_or_several_texts_or_token_lists(http):
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
    whole = await ok(http, "/generate", prompt="abc", max_tokens=2, logprobs=0)
    assert whole["logprob_kind"] == "scaled"
    body = await ok(http, "/generate", prompt="abc", max_tokens=2)
    assert (
        "logprob_kind" not in body and "logprobs" not in body and "prompt_logprobs" not in body
    )


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
    with pytest.raises(openai.BadRequestError, match="no space"):
        await client.completions.create(model="tiny", prompt="a" * 300)


async def test_every_route_returns_the_experts_of_prompt_and_output_where_asked(
    make_engine, moe_dir
):
    transport = httpx.ASGITransport(app=create_app(make_engine(moe_dir)))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        asked = {"max_tokens": 3, "seed": 1, "ignore_eos": True, "return_routed_experts": True}
        tokens = {"prompt_token_ids": [5, 6, 7]}
        body = await ok(http, "/generate", prompt=tokens, logprobs=0, n=2, **asked)
        outputs = DemoRoute().read_generations(ReplyPart(body, "u"), [5, 6, 7], None)
        assert [o.routed_experts["shape"] for o in outputs] == [[5, 2, 2]] * 2
        body = await ok(
            http,
            "/v1/completions",
            prompt=[5, 6, 7],
            logprobs=1,
            return_token_ids=True,
            **asked,
        )
        (output,) = CompletionsRoute().read_generations(ReplyPart(body, "u"), [5, 6, 7], None)
        assert output.tokens == outputs[0].tokens
        assert output.routed_experts == outputs[0].routed_experts
        chat = await ok(http, "/v1/chat/completions", **CHAT | asked, return_token_ids=True)
        experts = experts_of(chat["choices"][0]["routed_experts"], 0)
        assert experts["shape"][0] == len(chat["prompt_token_ids"]) + 2
        silent = await ok(http, "/v1/chat/completions", **CHAT)
        assert "routed_experts" not in silent["choices"][0]


async def test_experts_of_a_dense_model_are_refused(http):
    reply = await http.post("/generate", json={"prompt": "a", "return_routed_experts": True})
    assert reply.status_code == 400 and "no layers of experts" in reply.text
