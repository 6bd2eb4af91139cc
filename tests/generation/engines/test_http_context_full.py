"""Refusals because the context of the model is full, in the words of each engine."""

from __future__ import annotations

import pytest

from atroposlib.errors import ContextFull
from atroposlib.generation.engines.http import refusal_of

FULL = {
    "vLLM": "This model's maximum context length is 4096 tokens. However, you requested 4600 "
    "tokens (4100 in the messages, 500 in the completion).",
    "vLLM, ids": "The decoder prompt (length 5000) is longer than the maximum model length of "
    "4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
    "SGLang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "OpenAI": '{"error": {"code": "context_length_exceeded"}}',
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "Anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "here": "the prompt has 300 tokens and leaves no space for an answer in the 256 tokens of "
    "context",
}
OTHER = [
    (400, "temperature has to be at least 0"),
    (400, "the body is not JSON"),
    (404, "the model has a context length of 4096"),
    (401, "no key"),
    (422, "messages: field required"),
]


@pytest.mark.parametrize("text", FULL.values(), ids=FULL)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_full_context_has_an_error_of_its_own(status, text):
    error = refusal_of(status, text, "POST /v1/completions")
    assert isinstance(error, ContextFull) and error.status_code == status
    assert text[:40] in str(error)


@pytest.mark.parametrize(("status", "text"), OTHER)
def test_other_refusals_are_none(status, text):
    assert not isinstance(refusal_of(status, text, "POST /v1/completions"), ContextFull)
