"""The OpenAI surface: /v1/models, /v1/completions, /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from atroposlib.errors import InferenceRefused
from atroposlib.inference.engine.sequence import Output
from atroposlib.inference.http import replies, streams
from atroposlib.inference.http.protocol import (
    DEFAULT_MAX_TOKENS,
    ChatRequest,
    CompletionRequest,
)
from atroposlib.inference.http.replies import Json, JsonResponse
from atroposlib.inference.http.service import InferenceService

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions


def router(service: InferenceService) -> APIRouter:
    routes = APIRouter(prefix="/v1")

    @routes.get("/models")
    async def models() -> Json:
        card = {
            "id": service.served.name,
            "object": "model",
            "created": 0,
            "owned_by": "atropos-local",
            "root": service.served.path,
            "max_model_len": service.served.max_model_len,
        }
        return {"object": "list", "data": [card]}

    @routes.post("/chat/completions", response_class=JsonResponse)
    async def chat(body: ChatRequest, http: Request) -> Response:
        prompt_ids = service.encode_chat(
            body.messages,
            add_generation_prompt=body.add_generation_prompt
            and not body.continue_final_message,
            continue_final_message=body.continue_final_message,
            tools=body.tools,
            **body.chat_template_kwargs,
        )
        head = _head("chatcmpl", "chat.completion", service)
        top = body.top_logprobs if body.logprobs else 0
        options: dict[str, Any] = {"default_max_tokens": DEFAULT_MAX_TOKENS, "top": top}
        if body.stream:
            return streams.chat(service, prompt_ids, body, head, options)
        request = service.request(prompt_ids, body, **options)
        (result,) = await service.run([request], http)
        choices = _chat_choices(service, body, result.outputs)
        extra: Json = {"prompt_token_ids": prompt_ids} if body.return_token_ids else {}
        usage = replies.usage(len(prompt_ids), result.outputs)
        return JsonResponse({**head, "choices": choices, "usage": usage, **extra})

    @routes.post("/completions", response_class=JsonResponse)
    async def completions(body: CompletionRequest, http: Request) -> Response:
        prompts = _prompts(service, body)
        head = _head("cmpl", "text_completion", service)
        options: dict[str, Any] = {
            "default_max_tokens": COMPLETION_MAX_TOKENS,
            "top": body.logprobs or 0,
        }
        if body.stream:
            if len(prompts) > 1:
                raise InferenceRefused(400, "a stream serves one prompt, not several")
            return streams.completion(service, prompts[0], body, head, options)
        requests = [service.request(prompt, body, **options) for prompt in prompts]
        results = await service.run(requests, http)
        choices: list[Json] = []
        for prompt, result in zip(prompts, results):
            choices += _completion_choices(service, body, prompt, result.outputs, len(choices))
        outputs = [output for result in results for output in result.outputs]
        usage = replies.usage(sum(map(len, prompts)), outputs)
        return JsonResponse({**head, "choices": choices, "usage": usage})

    return routes


def _head(prefix: str, kind: str, service: InferenceService) -> Json:
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": service.served.name,
    }


def _prompts(service: InferenceService, body: CompletionRequest) -> list[list[int]]:
    """The four accepted forms of ``prompt``, all as lists of token ids."""
    prompt: Any = body.prompt
    if not prompt:
        raise InferenceRefused(400, "the prompt is empty")
    several = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    return [
        (
            service.encode(p, add_special_tokens=body.add_special_tokens)
            if isinstance(p, str)
            else p
        )
        for p in several
    ]


def _chat_choices(
    service: InferenceService, body: ChatRequest, outputs: list[Output]
) -> list[Json]:
    names = service.names
    choices: list[Json] = []
    for index, (text, output) in enumerate(zip(names.texts(outputs), outputs)):
        logprobs = None
        if body.logprobs:
            logprobs = replies.chat_logprobs(output.tokens, output.logprobs, output.top, names)
        choice: Json = {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "logprobs": logprobs,
            "finish_reason": output.finish_reason.value,
            "weight_versions": replies.version_spans(output),
        }
        if body.return_token_ids:
            choice["token_ids"] = output.tokens
        choices.append(choice)
    return choices


def _completion_choices(
    service: InferenceService,
    body: CompletionRequest,
    prompt_ids: list[int],
    outputs: list[Output],
    first_index: int,
) -> list[Json]:
    names = service.names
    choices: list[Json] = []
    for index, (text, output) in enumerate(zip(names.texts(outputs), outputs), first_index):
        logprobs = None
        if body.logprobs is not None:
            logprobs = replies.completion_logprobs(
                output.tokens, output.logprobs, output.top, names
            )
        choice: Json = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason.value,
            "weight_versions": replies.version_spans(output),
        }
        if body.return_token_ids:
            choice["token_ids"] = output.tokens
            choice["prompt_token_ids"] = prompt_ids
        choices.append(choice)
    return choices
