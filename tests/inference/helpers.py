"""Requests, results and reference logprobs for the tests of the inference engine."""

from __future__ import annotations

import json
from typing import Any

import torch

from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.request import (
    GenerationRequest,
    RequestResult,
    SamplingParams,
)
from atroposlib.inference.engine.served_model import ServedModel

WAIT_S = 600.0  # far longer than any step here takes: only a hang reaches it


def request(prompt_ids: list[int], n: int = 1, **params: Any) -> GenerationRequest:
    return GenerationRequest(prompt_ids=prompt_ids, n=n, params=SamplingParams(**params))


def generate(engine: Engine, *requests: GenerationRequest) -> list[RequestResult]:
    """Submit together, wait for all."""
    for one in requests:
        engine.submit(one)
    return [one.future.result(WAIT_S) for one in requests]


def fresh_logprobs(
    served: ServedModel, prompt_ids: list[int], tokens: list[int], temperature: float = 1.0
) -> torch.Tensor:
    """Logprobs (len(tokens),) by one plain forward of the whole sequence."""
    ids = torch.tensor([prompt_ids + tokens])
    with torch.inference_mode():
        logits = served.model(input_ids=ids).logits[0] / (temperature or 1.0)
    at = torch.arange(len(prompt_ids) - 1, ids.shape[1] - 1)
    logprobs: torch.Tensor = logits.log_softmax(-1)[at, ids[0, len(prompt_ids) :]]
    return logprobs


def worst_difference(
    served: ServedModel, requests: list[GenerationRequest], results: list[RequestResult]
) -> float:
    """Largest |engine - fresh forward| over every sampled token."""
    worst = 0.0
    for one, result in zip(requests, results):
        for output in result.outputs:
            fresh = fresh_logprobs(
                served, one.prompt_ids, output.tokens, one.params.temperature
            )
            worst = max(worst, float((fresh - torch.tensor(output.logprobs)).abs().max()))
    return worst


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
