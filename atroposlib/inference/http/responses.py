"""Bodies of responses, built as plain dictionaries, and server-sent events of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from atroposlib.errors import AtroposError
from atroposlib.inference.engine.request import (
    GenerationRequest,
    Output,
    RequestResult,
    TokenEvent,
)
from atroposlib.inference.http.protocol import ChatRequest, CompletionRequest
from atroposlib.inference.http.service import Detokenizer, InferenceService

Json = dict[str, Any]
Make = Callable[[Callable[[TokenEvent], None]], GenerationRequest]
Chunk = Callable[[TokenEvent], Json]  # the choice of one token
Last = Callable[[int, Output, str], Json]  # the closing choice of one sequence


class JsonResponse(Response):
    """JSON by msgspec: a batch of sequences is 10^5 numbers, so the encoder matters."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def usage(num_prompt_tokens: int, outputs: list[Output]) -> Json:
    completion = sum(len(output.tokens) for output in outputs)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": num_prompt_tokens + completion,
    }


def version_spans(output: Output) -> list[Json]:
    return [{"version": s.version, "start": s.start, "end": s.end} for s in output.versions]


def chat_logprobs(
    tokens: list[int],
    logprobs: list[float],
    top: list[dict[int, float]],
    detokenizer: Detokenizer,
) -> Json:
    """The ``logprobs`` of a chat choice: one entry per token with its alternatives."""
    content = []
    for i, (token, logprob) in enumerate(zip(tokens, logprobs)):
        alternatives = top[i] if top else {}
        entry = _token_entry(token, logprob, detokenizer)
        entry["top_logprobs"] = [
            _token_entry(t, v, detokenizer) for t, v in alternatives.items()
        ]
        content.append(entry)
    return {"content": content, "refusal": None}


def _token_entry(token: int, logprob: float, detokenizer: Detokenizer) -> Json:
    text = detokenizer.token(token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def completion_logprobs(
    tokens: list[int],
    logprobs: list[float],
    top: list[dict[int, float]],
    detokenizer: Detokenizer,
    offset: int = 0,
) -> Json:
    """The ``logprobs`` of a completion choice: parallel lists."""
    texts = [detokenizer.token(token) for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    alternatives = [{detokenizer.token(t): v for t, v in entry.items()} for entry in top]
    return {
        "tokens": texts,
        "token_logprobs": logprobs,
        "top_logprobs": alternatives or None,
        "text_offset": offsets,
    }


def generate_logprobs(output: Output, top: int) -> list[list[dict[int, float]]]:
    """/generate: per token one dictionary, the sampled token first."""
    rows: list[list[dict[int, float]]] = []
    for i, (token, logprob) in enumerate(zip(output.tokens, output.logprobs)):
        others = output.top[i].items() if top and output.top else ()
        rows.append([{token: logprob} | {t: v for t, v in others if t != token}])
    return rows


# --- streams: one chunk per sampled token


def chat_stream(
    service: InferenceService,
    prompt_ids: list[int],
    body: ChatRequest,
    head: Json,
    options: dict[str, Any],
) -> StreamingResponse:
    def choice(event: TokenEvent) -> Json:
        tops = [event.top] if event.top else []
        args = [event.token], [event.logprob], tops, service.detokenizer
        logprobs = chat_logprobs(*args) if body.logprobs else None
        tokens: Json = {"token_ids": [event.token]} if body.return_token_ids else {}
        delta = {"role": "assistant", "content": event.text}
        return {"index": event.index, "delta": delta, "logprobs": logprobs, **tokens}

    def last(index: int, output: Output, rest: str) -> Json:
        return {"index": index, "delta": {"content": rest} if rest else {}, **_ending(output)}

    head = {**head, "object": "chat.completion.chunk"}
    return _stream_response(service, prompt_ids, body, head, options, choice, last)


def completion_stream(
    service: InferenceService,
    prompt_ids: list[int],
    body: CompletionRequest,
    head: Json,
    options: dict[str, Any],
) -> StreamingResponse:
    def choice(event: TokenEvent) -> Json:
        tops = [event.top] if event.top else []
        args = [event.token], [event.logprob], tops, service.detokenizer
        logprobs = None if body.logprobs is None else completion_logprobs(*args)
        tokens: Json = {"token_ids": [event.token]} if body.return_token_ids else {}
        return {"index": event.index, "text": event.text, "logprobs": logprobs, **tokens}

    def last(index: int, output: Output, rest: str) -> Json:
        return {"index": index, "text": rest, **_ending(output)}

    return _stream_response(service, prompt_ids, body, head, options, choice, last)


def _ending(output: Output) -> Json:
    return {
        "logprobs": None,
        "finish_reason": output.finish_reason.value,
        "weight_versions": version_spans(output),
    }


def _stream_response(
    service: InferenceService,
    prompt_ids: list[int],
    body: ChatRequest | CompletionRequest,
    head: Json,
    options: dict[str, Any],
    choice: Chunk,
    last: Last,
) -> StreamingResponse:
    # checked before the first byte, so that a refusal is still a 4xx
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
        # the status line is sent: only the stream can carry the error
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
            yield {"choices": [], "usage": usage(num_prompt_tokens, event.outputs)}


def _closing(
    service: InferenceService, result: RequestResult, sent: dict[int, int], last: Last
) -> list[Json]:
    """One last choice per sequence, with the text that was held back for a stop string."""
    texts = service.detokenizer.texts(result.outputs)
    return [
        last(index, output, text[sent.get(index, 0) :])
        for index, (text, output) in enumerate(zip(texts, result.outputs))
    ]


def _event(body: Json) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
