"""Contract of every engine client, on each wire format.

A backend is added with a line in ``WIRES`` and the wire's shape in the fake.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from atroposlib.errors import InferenceRefused, InferenceUnavailable, TokensMissing
from atroposlib.generation.routing.manager import BACKENDS
from atroposlib.testing.fake_shapes import END, encode, fake_logprob

# name of the wire: (server_type, shape of the fake, path of token requests)
WIRES = {
    "vllm-demo": ("vllm", "generate", "/generate"),
    "vllm-scale-out": ("vllm", "scale_out", "/inference/v1/generate"),
    "vllm-completions": ("vllm", "completions", "/v1/completions"),
    "sglang": ("sglang", "sglang", "/generate"),
    "trl": ("trl", "trl", "/generate/"),
    "openai": ("openai", "completions", None),
}
TOKEN_WIRES = [name for name, (_, _, path) in WIRES.items() if path]
SCORING_WIRES = [name for name in TOKEN_WIRES if name != "trl"]
PROMPT = encode("<|user|>2+2=<|end|><|assistant|>")
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def backend(connect, fake, tokenizer):
    """Builds the client of a wire, with the fake speaking it."""

    def build(wire: str, **settings: Any):
        server_type, shape, _ = WIRES[wire]
        fake.shapes = frozenset({shape})
        server = connect(server_type, **settings)
        if wire in TOKEN_WIRES:
            server.tokenizer = tokenizer
        return server

    return build


def test_every_backend_is_covered_by_the_contract_tests() -> None:
    assert {server_type for server_type, _, _ in WIRES.values()} == set(BACKENDS)


# --- tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("wire", TOKEN_WIRES)
async def test_returned_tokens_and_logprobs_are_the_sampled_ones(
    backend, fake, wire: str, n: int
) -> None:
    fake.reply = lambda prompt, i: f"is {i}"
    server = backend(wire)
    server.announced_version = fake.weight_version = 7  # TRL reports no version
    outputs = await server.generate(PROMPT, n=n, max_tokens=9)
    assert len(outputs) == n
    for i, output in enumerate(outputs):
        tokens = [*encode(f"is {i}"), END]
        assert output.prompt_ids == PROMPT
        assert output.tokens == tokens
        assert output.logprobs == [fake_logprob(token) for token in tokens]
        assert output.versions == [7] * len(tokens)
        assert output.finish_reason == "stop"
    assert fake.paths == [WIRES[wire][2]]


@pytest.mark.parametrize("wire", TOKEN_WIRES)
@pytest.mark.parametrize("name", ["max_tokens", "max_new_tokens", "max_completion_tokens"])
async def test_every_token_limit_name_is_accepted_and_a_cut_reply_ends_with_length(
    backend, fake, wire: str, name: str
) -> None:
    fake.reply = lambda prompt, i: "too long"
    answer = await backend(wire).tokens_and_logprobs_completion(input_ids=PROMPT, **{name: 3})
    assert answer[:2] == (PROMPT, [encode("too")]) and answer[3] == ["length"]


@pytest.mark.parametrize("wire", TOKEN_WIRES)
@pytest.mark.parametrize("stop", ["long", ["xyz", "long"]], ids=["str", "list"])
async def test_a_stop_string_ends_the_tokens_whether_given_as_text_or_as_list(
    backend, fake, wire: str, stop: Any
) -> None:
    fake.reply = lambda prompt, i: "too long a reply"
    (output,) = await backend(wire).generate(PROMPT, max_tokens=99, stop=stop)
    assert output.tokens == encode("too long")
    # TRL reports no finish reason: a reply without an end token counts as truncated.
    assert output.finish_reason == ("length" if wire == "trl" else "stop")


@pytest.mark.parametrize("wire", TOKEN_WIRES)
async def test_a_response_without_logprobs_raises_and_is_not_padded(
    backend, fake, wire: str
) -> None:
    fake.returns_logprobs = False
    with pytest.raises(TokensMissing):
        await backend(wire).generate(PROMPT)
    assert len(fake.requests) == 1  # asking again would not bring them


@pytest.mark.parametrize("wire", TOKEN_WIRES)
async def test_a_duplicate_leading_bos_token_is_removed(
    backend, fake, tokenizer, monkeypatch, wire: str
) -> None:
    monkeypatch.setattr(type(tokenizer), "bos_token_id", 0, raising=False)
    server = backend(wire)
    by_text = await server.tokens_and_logprobs_completion(prompt="<|system|><|system|>a")
    by_ids = await server.tokens_and_logprobs_completion(input_ids=[0, 0, 9])
    assert by_text[0] == encode("<|system|>a") and by_ids[0] == [0, 9]
    (exact,) = await server.generate([0, 0, 9])
    assert exact.prompt_ids == [0, 0, 9]  # the primitive sends its input unchanged


@pytest.mark.parametrize("wire", SCORING_WIRES)  # TRL does not report aborts
async def test_an_aborted_generation_is_resumed(backend, fake, wire: str) -> None:
    fake.reply = lambda prompt, i: "abcd"[max(0, len(encode(prompt)) - len(PROMPT)) :]
    fake.abort_next.extend([2, 0])
    answer = await backend(wire).tokens_and_logprobs_completion(
        input_ids=PROMPT, max_tokens=10
    )
    assert answer[1] == [[*encode("abcd"), END]] and answer[3] == ["stop"]


@pytest.mark.parametrize("wire", SCORING_WIRES)
@pytest.mark.parametrize(("top_k", "ids_at_1"), [(0, [7]), (2, [7, 0, 1])])
async def test_logprobs_of_a_given_sequence_are_returned(
    backend, wire: str, top_k: int, ids_at_1: list[int]
) -> None:
    answer = await backend(wire).get_logprobs(input_ids=[5, 7, 9], top_k=top_k)
    assert answer["prompt_tokens"] == [5, 7, 9]
    assert [len(row) for row in answer["prompt_topk_token_ids"]] == [0, top_k + 1, top_k + 1]
    assert answer["prompt_topk_token_ids"][1] == ids_at_1
    assert answer["prompt_topk_logprobs"][1] == [fake_logprob(token) for token in ids_at_1]


@pytest.mark.parametrize("wire", ["trl", "openai"])
async def test_a_backend_without_prompt_logprobs_raises(backend, fake, wire: str) -> None:
    with pytest.raises(NotImplementedError, match="does not implement get_logprobs"):
        await backend(wire).get_logprobs(input_ids=[5])
    assert fake.requests == []


# --- text --------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_a_chat_completion_has_n_texts_without_end_tokens(
    backend, fake, wire: str
) -> None:
    fake.reply = lambda prompt, i: f"answer {i}"
    server = backend(wire, model_name="served")
    chat = await server.chat_completion(
        messages=HELLO, n=2, model="ignored", split="train", max_tokens=20
    )
    assert [c.message.content for c in chat.choices] == ["answer 0", "answer 1"]
    assert [c.index for c in chat.choices] == [0, 1]
    assert {c.finish_reason for c in chat.choices} == {"stop"}
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    (_, body), *_ = fake.requests
    assert "split" not in body
    assert wire == "trl" or body["model"] == "served"  # TRL serves one model, unnamed


@pytest.mark.parametrize("wire", WIRES)
async def test_a_text_completion_continues_its_prompt(backend, fake, wire: str) -> None:
    fake.reply = lambda prompt, i: prompt[::-1]
    completion = await backend(wire).completion(prompt="abc", max_tokens=8)
    assert completion.choices[0].text == "cba"


# --- failures ----------------------------------------------------------------------------


def calls_of(server: Any) -> list[Any]:
    calls = [lambda: server.chat_completion(messages=HELLO)]
    calls.append(lambda: server.completion(prompt="abc"))
    if server.returns_tokens:
        calls.append(lambda: server.generate(PROMPT))
        calls.append(lambda: server.tokens_and_logprobs_completion(input_ids=PROMPT))
    return calls


@pytest.mark.parametrize("wire", WIRES)
async def test_a_transient_failure_is_retried_and_a_rejection_is_not(
    backend, fake, wire: str
) -> None:
    server = backend(wire)
    for call in calls_of(server):
        fake.requests.clear()
        fake.fail_next.append(400)
        with pytest.raises(InferenceRefused, match="refused .400.*as scripted"):
            await call()
        assert len(fake.requests) == 1
        fake.fail_next.extend([500, 503])
        await call()
        assert len(fake.requests) == 1 + 3


@pytest.mark.parametrize("wire", WIRES)
async def test_a_call_waits_no_longer_than_its_timeout(backend, fake, wire: str) -> None:
    server = backend(wire)
    await calls_of(server)[0]()  # the first call detects routes and versions
    fake.hold = threading.Event()
    for call in calls_of(server):
        server.http.timeout_s = 0.05
        await server.http.aclose()  # the next client has the new timeout
        with pytest.raises(InferenceUnavailable, match="3 attempts failed.*in 0.05 s"):
            await call()


async def test_a_timeout_of_one_call_bounds_that_call(backend, fake) -> None:
    fake.hold = threading.Event()
    with pytest.raises(InferenceUnavailable, match="no response in 0.02 s"):
        await backend("openai").chat_completion(messages=HELLO, timeout=0.02)


# --- address, key, health ----------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("suffix", ["/v1", "/v1/"])
async def test_requests_are_sent_below_v1_with_the_api_key(
    backend, fake, fake_url: str, wire: str, suffix: str
) -> None:
    server = backend(wire, base_url=f"{fake_url}{suffix}", api_key="secret")
    for call in calls_of(server):
        await call()
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer secret"}
    assert fake.health_checks == 1 and len(fake.requests) == len(calls_of(server))


@pytest.mark.parametrize("wire", TOKEN_WIRES)
async def test_an_address_without_v1_serves_token_requests(
    backend, fake, fake_url: str, wire: str
) -> None:
    await backend(wire, base_url=fake_url).generate(PROMPT)
    assert fake.paths == [WIRES[wire][2]]


@pytest.mark.parametrize("wire", WIRES)
async def test_train_and_eval_calls_are_counted_separately(backend, wire: str) -> None:
    server = backend(wire)
    await asyncio.gather(*(call() for call in calls_of(server)))
    await server.chat_completion(messages=HELLO, split="eval")
    timings = (len(server.request_timings), len(server.eval_request_timings))
    assert timings == (len(calls_of(server)), 1)
