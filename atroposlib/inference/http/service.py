"""HTTP requests as engine requests: tokenization, checks, futures, cancel on disconnect."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from starlette.requests import Request

from atroposlib.errors import InferenceRefused, PictureError
from atroposlib.inference.engine.earlier import EarlierVersions
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.request import (
    GenerationRequest,
    Output,
    RequestResult,
    TokenEvent,
)
from atroposlib.inference.http.protocol import SamplingFields
from atroposlib.utils.models.vision import PictureInputs
from atroposlib.wire.images import message_has_pictures, split_pictures


class Detokenizer:
    """Texts of whole outputs and of single tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.token = lru_cache(maxsize=65_536)(lambda token: str(tokenizer.decode([token])))

    def texts(self, outputs: list[Output]) -> list[str]:
        """Text of each output, special tokens left out, cut before a stop string."""
        texts: list[str] = self._tokenizer.batch_decode(
            [output.tokens for output in outputs], skip_special_tokens=True
        )
        return [
            text if output.stop_text is None else output.stop_text
            for text, output in zip(texts, outputs)
        ]


class ChatPrompt(NamedTuple):
    ids: list[int]
    pictures: PictureInputs | None = None


class InferenceService:
    """Shared by the routes; runs on the event loop and never touches the model."""

    def __init__(self, engine: Engine, earlier: EarlierVersions | None = None) -> None:
        self.engine = engine
        self.served = engine.served
        self.earlier = earlier
        self.detokenizer = Detokenizer(engine.served.tokenizer)

    def of(self, model: str | None) -> InferenceService:
        """The service of an earlier version, if ``model`` is its name; else this service."""
        engine = self.earlier.engine_of(model) if self.earlier and model else None
        return self if engine is None else InferenceService(engine)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        tokenizer = self.served.tokenizer
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def encode_chat(self, messages: list[dict[str, Any]], **template: Any) -> list[int]:
        """Token ids of a conversation by the model's chat template."""
        tokenizer = self.served.tokenizer
        if not tokenizer.chat_template:
            raise InferenceRefused(400, "the model has no chat template: use /v1/completions")
        text = tokenizer.apply_chat_template(
            [_with_plain_content(m) for m in messages], tokenize=False, **template
        )
        return self.encode(text, add_special_tokens=False)

    async def chat_prompt(self, messages: list[dict[str, Any]], **template: Any) -> ChatPrompt:
        """Tokens of a conversation, and its pictures. Raises InferenceRefused (400)."""
        if not any(map(message_has_pictures, messages)):
            return ChatPrompt(self.encode_chat(messages, **template))
        reader = self.served.reader
        if reader is None:
            problem = f"{self.served.name} reads text only, and no pictures"
            raise InferenceRefused(400, f"content parts of type image_url: {problem}")
        if not reader.has_template:
            raise InferenceRefused(400, "the model has no chat template for pictures")
        try:
            shown, pictures = split_pictures(messages)
            text = reader.render(shown, **template)
            return ChatPrompt(*await asyncio.to_thread(reader.prompt, text, pictures))
        except PictureError as error:
            raise InferenceRefused(400, f"pictures: {error}") from error

    def request(
        self,
        prompt_ids: Sequence[int],
        fields: SamplingFields,
        *,
        pictures: PictureInputs | None = None,
        prompt_logprobs: int | None = None,
    ) -> GenerationRequest:
        """The engine's request. Raises InferenceRefused: 400, or 404 for another model."""
        context_left = self._context_left(prompt_ids, fields)
        self._require_tokens(prompt_ids)
        own = (self.served.name, self.served.path)
        if fields.model not in (None, "", "default", *own, os.path.relpath(own[1])):
            raise InferenceRefused(
                404, f"model {fields.model!r} is not served here; {self.served.name!r} is"
            )
        params = fields.sampling_params(context_left)
        if params.routed_experts and not self.served.routers:
            problem = "has no layers of experts whose choice this server can report"
            raise InferenceRefused(400, f"return_routed_experts: {self.served.name} {problem}")
        if not params.max_tokens and prompt_logprobs is None:
            raise InferenceRefused(400, "max_tokens 0 needs prompt_logprobs")
        return GenerationRequest(
            prompt_ids=list(prompt_ids),
            params=params,
            pictures=pictures,
            n=fields.n,
            prompt_logprobs=prompt_logprobs,
        )

    def _context_left(self, prompt_ids: Sequence[int], fields: SamplingFields) -> int:
        context = min(self.served.max_model_len, self.engine.limits.kv_budget_tokens)
        context_left = context - len(prompt_ids)
        wants_tokens = fields.max_tokens != 0
        if context_left < wants_tokens:
            raise InferenceRefused(
                400,
                f"the prompt has {len(prompt_ids)} tokens and leaves no space for an answer in "
                f"the {context} tokens of context",
            )
        return context_left

    def _require_tokens(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise InferenceRefused(400, "the prompt has no tokens")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.served.vocab_size:
            raise InferenceRefused(400, f"token ids lie in 0 .. {self.served.vocab_size - 1}")

    async def run(
        self, requests: list[GenerationRequest], http: Request
    ) -> list[RequestResult]:
        """Return all results; cancel every request when the client disconnects."""
        for request in requests:
            self.engine.submit(request)
        gone = asyncio.ensure_future(_wait_for_disconnect(http))
        results = asyncio.ensure_future(_results(requests))
        try:
            ends: set[asyncio.Future[Any]] = {gone, results}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if results.done():
                return results.result()
            raise InferenceRefused(499, "the client closed the connection")
        finally:
            gone.cancel()
            results.cancel()
            for request in requests:
                if not request.future.done():
                    self.engine.cancel(request)

    async def stream(
        self, request: GenerationRequest
    ) -> AsyncIterator[TokenEvent | RequestResult]:
        """Events of a request as they are sampled, then its result."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[TokenEvent | None] = asyncio.Queue()

        def post(event: TokenEvent | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        request.stream_to(post)
        self.engine.submit(request)
        try:
            while (event := await events.get()) is not None:
                yield event
            yield request.future.result()
        finally:
            if not request.future.done():
                self.engine.cancel(request)


async def _results(requests: list[GenerationRequest]) -> list[RequestResult]:
    return [await asyncio.wrap_future(request.future) for request in requests]


async def _wait_for_disconnect(http: Request) -> None:
    """Return when the client has disconnected; the body has been read before."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _with_plain_content(message: dict[str, Any]) -> dict[str, Any]:
    """Text parts joined to a string, as most templates expect."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    kinds = {part.get("type") for part in content}
    if kinds - {"text"}:
        what = ", ".join(sorted(map(str, kinds - {"text"})))
        raise InferenceRefused(
            400, f"content parts of type {what}: this server reads text only, and no pictures"
        )
    return {**message, "content": "".join(part["text"] for part in content)}
