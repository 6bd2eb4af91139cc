from __future__ import annotations

import asyncio
from base64 import b64encode
from io import BytesIO

import numpy as np
import pytest

from atroposlib.errors import ConfigError, InferenceUnavailable, TokensMissing
from atroposlib.generation.engines.openai import logprobs_result
from atroposlib.generation.engines.vllm import (
    CompletionsRoute,
    VLLMServer,
)
from atroposlib.generation.sampling.reply_form import ReplyPart, topk_rows
from atroposlib.testing.fake_shapes import END, encode, fake_logprob
from atroposlib.wire.routing import experts_entry

ROUTES = {
    "generate": "/generate",
    "scale_out": "/inference/v1/generate",
    "completions": "/v1/completions",
}
PROMPT = encode("<|user|>2+2=<|end|><|assistant|>")


@pytest.mark.parametrize("shape", ROUTES)
async def test_the_vllm_route_is_detected_once_without_generating(
    connect, fake, shape: str
) -> None:
    fake.shapes = frozenset({shape})
    server = connect("vllm")
    await asyncio.gather(*(server.generate(PROMPT) for _ in range(5)))
    assert fake.paths == [ROUTES[shape]] * 5


@pytest.mark.parametrize(
    ("spans", "header", "info", "version"),
    [(True, True, 3, 3), (False, True, 3, 3), (False, False, 3, 3), (False, False, None, -1)],
)
async def test_weight_versions_are_read_from_spans_then_the_header_then_weight_info(
    connect, fake, spans: bool, header: bool, info: int | None, version: int
) -> None:
    fake.reports_spans, fake.reports_header, fake.weight_version = spans, header, info
    (output,) = await connect("vllm").generate(PROMPT)
    assert output.versions == [version] * len(output.tokens)


async def test_the_four_tuple_call_encodes_text_and_returns_the_sent_prompt_ids(
    connect, fake, tokenizer
) -> None:
    fake.reply = lambda prompt, i: "ok"
    server = connect("vllm")
    server.tokenizer = tokenizer
    ids, tokens, logprobs, reasons = await server.tokens_and_logprobs_completion(
        prompt="abc", n=2, max_new_tokens=5
    )
    assert ids == encode("abc")
    assert tokens == [[*encode("ok"), END]] * 2 and reasons == ["stop", "stop"]
    assert logprobs == [[fake_logprob(token) for token in tokens[0]]] * 2
    assert fake.requests[0][1]["max_tokens"] == 5


@pytest.mark.parametrize(
    "raw",
    [
        [None, {"7": -0.5, "2": -1.0}],
        [None, [{"7": -0.5, "2": -1.0}]],
        [None, [{7: {"logprob": -0.5}}, {2: {"logprob": -1.0}}]],
        [[None, {"7": -0.5, "2": -1.0}]],
    ],
)
def test_prompt_logprobs_of_any_nesting_become_parallel_lists(raw: object) -> None:
    listed = logprobs_result([1, 2], topk_rows(raw))
    assert listed["prompt_topk_token_ids"] == [[], [7, 2]]
    assert listed["prompt_topk_logprobs"] == [[], [-0.5, -1.0]]


def test_missing_prompt_logprobs_are_rejected() -> None:
    with pytest.raises(TokensMissing, match="no prompt_logprobs"):
        topk_rows(None)


async def test_a_gateway_error_during_route_detection_is_retried(
    connect, fake, monkeypatch
) -> None:
    answers = iter([503, 503])
    server = connect("vllm")
    detect = server._detect_route

    async def down_at_first():
        if next(answers, None) is not None:
            raise InferenceUnavailable("POST /generate: status 503")
        return await detect()

    monkeypatch.setattr(server, "_detect_route", down_at_first)
    await server.generate(PROMPT)
    assert list(server.attempts_list) == [3]


@pytest.mark.parametrize("server_type", ["vllm", "sglang", "trl"])
def test_a_token_server_without_an_address_is_rejected(connect, server_type: str) -> None:
    with pytest.raises(ConfigError, match=f"type {server_type} needs an address"):
        connect(server_type, base_url="")


async def test_an_unloadable_tokenizer_raises_an_error_that_names_it(
    connect, tmp_path
) -> None:
    server = connect("vllm", model_name=str(tmp_path))
    with pytest.raises(ConfigError, match="no tokenizer can be loaded from"):
        await server.tokens_and_logprobs_completion(prompt="hi")
    assert isinstance(server, VLLMServer)


@pytest.mark.parametrize("label", [0, None])  # the local server's first version; vLLM's
async def test_no_token_of_a_server_that_restarted_with_older_weights_is_used(
    connect, fake, label: int | None
) -> None:
    fake.reports_spans = fake.reports_header = False
    fake.weight_version = 31
    server = connect("vllm")
    server.health.timeout_s, server.announced_version = 0.0, 31
    await server.generate(PROMPT)
    fake.weight_version = label
    with pytest.raises(InferenceUnavailable, match="restarted and holds .*, not 31: waiting"):
        await server.generate(PROMPT)
    assert not await server._check_health()
    fake.weight_version = 32  # the trainer gave it the current weights
    server.health.mark_suspect()
    server.health.report(await server._check_health())
    (output,) = await server.generate(PROMPT)
    assert set(output.versions) == {32}


async def test_a_server_whose_version_never_changes_is_used(connect, fake) -> None:
    fake.weight_version = 0
    server = connect("vllm")
    for announced in (0, 31):
        server.announced_version = announced
        assert await server.generate(PROMPT)


async def test_routed_experts_of_a_choice_are_those_of_prompt_and_output() -> None:
    experts = np.arange(12).reshape(3, 2, 2)
    np.save(file := BytesIO(), experts)
    choice = {
        "token_ids": [7, 8],
        "logprobs": {"token_logprobs": [-0.5, -1.0]},
        "routed_experts": b64encode(file.getvalue()).decode(),
    }
    (output,) = CompletionsRoute().read_generations(
        ReplyPart({"choices": [choice]}, "u"), [1, 2], None
    )
    assert output.routed_experts == experts_entry(experts)
