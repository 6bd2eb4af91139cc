"""Bodies of responses, built as plain dictionaries, and server-sent events of streams."""

from __future__ import annotations

import time
import uuid
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
from starlette.responses import Response, StreamingResponse

from atroposlib.errors import AtroposError
from atroposlib.inference.engine.request import GenerationRequest, Output, TokenEvent
from atroposlib.inference.http.protocol import ChatRequest, CompletionRequest
from atroposlib.inference.http.service import Detokenizer, InferenceService

Json = dict[str, Any]


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


def chat_logprobs(
    tokens: list[int],
    logprobs: list[float],
    top: list[dict[int, float]],
    detokenizer: Detokenizer,
) -> Json:
    """The ``logprobs`` of a chat choice: an entry per token with its alternatives."""
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
) -> Json:
    """The ``logprobs`` of a completion choice: parallel lists."""
    texts = [detokenizer.token(token) for token in tokens]
    ends = accumulate(map(len, texts), initial=0)
    alternatives = [{detokenizer.token(t): v for t, v in entry.items()} for entry in top]
    return {
        "tokens": texts,
        "token_logprobs": logprobs,
        "top_logprobs": alternatives or None,
        "text_offset": list(ends)[:-1],
    }


def generate_logprobs(output: Output, top: int) -> list[list[dict[int, float]]]:
    """Logprobs of /generate: a dictionary per token, the sampled token first."""
    rows: list[list[dict[int, float]]] = []
    for i, (token, logprob) in enumerate(zip(output.tokens, output.logprobs)):
        alternatives = output.top[i].items() if top and output.top else ()
        rows.append([{token: logprob} | {t: v for t, v in alternatives if t != token}])
    return rows


# --- choices of OpenAI's routes


@dataclass(frozen=True)
class ReplyFormat:
    """Differences between the bodies of chats and of completions."""

    prefix: str  # prefix of the id
    kind: str
    chunk_kind: str
    message: Callable[[str], Json]  # the text of a whole choice
    delta: Callable[[str], Json]  # the text of a token in a stream
    rest: Callable[[str], Json]  # the text that a stream held back
    logprobs: Callable[[list[int], list[float], list[dict[int, float]], Detokenizer], Json]


def _text(text: str) -> Json:
    return {"text": text}


CHAT = ReplyFormat(
    "chatcmpl",
    "chat.completion",
    "chat.completion.chunk",
    message=lambda text: {"message": {"role": "assistant", "content": text}},
    delta=lambda text: {"delta": {"role": "assistant", "content": text}},
    rest=lambda text: {"delta": {"content": text} if text else {}},
    logprobs=chat_logprobs,
)
COMPLETION = ReplyFormat(
    "cmpl", "text_completion", "text_completion", _text, _text, _text, completion_logprobs
)


@dataclass(frozen=True)
class OpenAIReply:
    """Reply to a request, whole or streamed."""

    form: ReplyFormat
    service: InferenceService
    body: ChatRequest | CompletionRequest

    def head(self, kind: str) -> Json:
        return {
            "id": f"{self.form.prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.service.served.name,
        }

    def whole(
        self, choices: list[Json], num_prompt_tokens: int, outputs: list[Output], **extra: Any
    ) -> JsonResponse:
        counts = usage(num_prompt_tokens, outputs)
        head = self.head(self.form.kind)
        return JsonResponse({**head, "choices": choices, "usage": counts, **extra})

    def choices(self, outputs: list[Output]) -> list[Json]:
        """Whole choices, in the order of the outputs."""
        texts = self.service.detokenizer.texts(outputs)
        return [
            {
                "index": index,
                **self.form.message(text),
                **_ending(output),
                **self._details(output.tokens, output.logprobs, output.top),
            }
            for index, (text, output) in enumerate(zip(texts, outputs))
        ]

    def stream(self, request: GenerationRequest) -> StreamingResponse:
        """Server-sent events, a chunk per sampled token."""
        return StreamingResponse(self._lines(request), media_type="text/event-stream")

    async def _lines(self, request: GenerationRequest) -> AsyncIterator[bytes]:
        head = self.head(self.form.chunk_kind)
        with_ids = self.body.return_token_ids
        prompt: Json = {"prompt_token_ids": request.prompt_ids} if with_ids else {}
        try:
            async for chunk in self._chunks(request):
                yield _event({**head, **prompt, **chunk})
                prompt = {}  # only the first chunk has it
        except AtroposError as error:
            # the status line is sent: only the stream can carry the error
            body = {"message": str(error), "type": "server_error", "code": 500}
            yield _event({"error": body})
        yield b"data: [DONE]\n\n"

    async def _chunks(self, request: GenerationRequest) -> AsyncIterator[Json]:
        sent: Counter[int] = Counter()  # characters already sent, per sequence
        async for event in self.service.stream(request):
            if isinstance(event, TokenEvent):
                sent[event.index] += len(event.text)
                yield {"choices": [self._token_choice(event)]}
                continue
            texts = self.service.detokenizer.texts(event.outputs)
            for index, (text, output) in enumerate(zip(texts, event.outputs)):
                rest = self.form.rest(text[sent[index] :])  # held back for a stop string
                yield {"choices": [{"index": index, **rest, **_ending(output)}]}
            if self.body.stream_options and self.body.stream_options.include_usage:
                yield {"choices": [], "usage": usage(len(request.prompt_ids), event.outputs)}

    def _token_choice(self, event: TokenEvent) -> Json:
        top = [event.top] if event.top else []
        return {
            "index": event.index,
            **self.form.delta(event.text),
            "logprobs": None,
            "finish_reason": None,
            **self._details([event.token], [event.logprob], top),
        }

    def _details(
        self, tokens: list[int], logprobs: list[float], top: list[dict[int, float]]
    ) -> Json:
        """The fields that the request asks for: logprobs, token ids."""
        fields: Json = {"token_ids": tokens} if self.body.return_token_ids else {}
        if self.body.top is not None:
            detokenizer = self.service.detokenizer
            fields["logprobs"] = self.form.logprobs(tokens, logprobs, top, detokenizer)
        return fields


def _ending(output: Output) -> Json:
    experts = routed_experts(output)
    return {
        "logprobs": None,
        "finish_reason": output.finish_reason.value,
        "weight_versions": output.versions,
        **({"routed_experts": experts} if experts else {}),
    }


def routed_experts(output: Output) -> str | None:
    """As vLLM: base64 of a .npy file, (tokens of prompt and output but the last, L, K)."""
    if output.experts is None:
        return None
    np.save(file := BytesIO(), output.experts)
    return b64encode(file.getvalue()).decode("ascii")


def _event(body: Json) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
