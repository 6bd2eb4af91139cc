"""Server-sent events for chat and completions: one chunk per sampled token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from atroposlib.errors import AtroposError
from atroposlib.inference.engine.sequence import (
    GenerationRequest,
    Output,
    RequestResult,
    TokenEvent,
)
from atroposlib.inference.http import replies
from atroposlib.inference.http.protocol import ChatRequest, CompletionRequest
from atroposlib.inference.http.replies import Json
from atroposlib.inference.http.service import InferenceService

Make = Callable[[Callable[[TokenEvent], None]], GenerationRequest]
Chunk = Callable[[TokenEvent], Json]  # the choice of one token
Last = Callable[[int, Output, str], Json]  # the closing choice of one sequence


def chat(
    service: InferenceService,
    prompt_ids: list[int],
    body: ChatRequest,
    head: Json,
    options: dict[str, Any],
) -> StreamingResponse:
    def choice(event: TokenEvent) -> Json:
        tops = [event.top] if event.top else []
        args = [event.token], [event.logprob], tops, service.names
        logprobs = replies.chat_logprobs(*args) if body.logprobs else None
        tokens: Json = {"token_ids": [event.token]} if body.return_token_ids else {}
        delta = {"role": "assistant", "content": event.text}
        return {"index": event.index, "delta": delta, "logprobs": logprobs, **tokens}

    def last(index: int, output: Output, rest: str) -> Json:
        return {"index": index, "delta": {"content": rest} if rest else {}, **_ending(output)}

    head = {**head, "object": "chat.completion.chunk"}
    return _response(service, prompt_ids, body, head, options, choice, last)


def completion(
    service: InferenceService,
    prompt_ids: list[int],
    body: CompletionRequest,
    head: Json,
    options: dict[str, Any],
) -> StreamingResponse:
    def choice(event: TokenEvent) -> Json:
        tops = [event.top] if event.top else []
        args = [event.token], [event.logprob], tops, service.names
        logprobs = None if body.logprobs is None else replies.completion_logprobs(*args)
        tokens: Json = {"token_ids": [event.token]} if body.return_token_ids else {}
        return {"index": event.index, "text": event.text, "logprobs": logprobs, **tokens}

    def last(index: int, output: Output, rest: str) -> Json:
        return {"index": index, "text": rest, **_ending(output)}

    return _response(service, prompt_ids, body, head, options, choice, last)


def _ending(output: Output) -> Json:
    return {
        "logprobs": None,
        "finish_reason": output.finish_reason.value,
        "weight_versions": replies.version_spans(output),
    }


def _response(
    service: InferenceService,
    prompt_ids: list[int],
    body: ChatRequest | CompletionRequest,
    head: Json,
    options: dict[str, Any],
    choice: Chunk,
    last: Last,
) -> StreamingResponse:
    # checked here, before the first byte: a refusal must still be a 4xx
    service.request(prompt_ids, body, **options)

    def make(on_event: Callable[[TokenEvent], None]) -> GenerationRequest:
        return service.request(prompt_ids, body, **options, on_event=on_event)

    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    chunks = _chunks(service, make, len(prompt_ids), with_usage, choice, last)
    with_prompt: Json = {"prompt_token_ids": prompt_ids} if body.return_token_ids else {}
    lines = _lines(chunks, head, with_prompt)
    return StreamingResponse(lines, media_type="text/event-stream")


async def _lines(chunks: AsyncIterator[Json], head: Json, first: Json) -> AsyncIterator[bytes]:
    """Wire format; ``first`` goes with the first chunk only."""
    try:
        async for chunk in chunks:
            yield _event({**head, **first, **chunk})
            first = {}
    except AtroposError as error:
        # the status line is out: the client learns of it in the stream or not at all
        yield _event({"error": {"message": str(error), "type": "server_error", "code": 500}})
    yield b"data: [DONE]\n\n"


async def _chunks(
    service: InferenceService,
    make: Make,
    num_prompt_tokens: int,
    with_usage: bool,
    choice: Chunk,
    last: Last,
) -> AsyncIterator[Json]:
    sent: dict[int, int] = {}  # characters already sent, per sequence
    async for event in service.stream(make):
        if isinstance(event, TokenEvent):
            sent[event.index] = sent.get(event.index, 0) + len(event.text)
            yield {"choices": [{**choice(event), "finish_reason": None}]}
            continue
        for piece in _closing(service, event, sent, last):
            yield {"choices": [piece]}
        if with_usage:
            yield {"choices": [], "usage": replies.usage(num_prompt_tokens, event.outputs)}


def _closing(
    service: InferenceService, result: RequestResult, sent: dict[int, int], last: Last
) -> list[Json]:
    """One last choice per sequence, with the text that was held back for a stop string."""
    texts = service.names.texts(result.outputs)
    return [
        last(index, output, text[sent.get(index, 0) :])
        for index, (text, output) in enumerate(zip(texts, result.outputs))
    ]


def _event(body: Json) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
