"""Routes that sample: OpenAI's /v1/completions and /v1/chat/completions, vLLM's /generate."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from atroposlib.errors import InferenceRefused
from atroposlib.inference.engine.request import Output
from atroposlib.inference.http.protocol import (
    DEFAULT_MAX_TOKENS,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    TokenPrompt,
)
from atroposlib.inference.http.responses import (
    Json,
    JsonResponse,
    chat_logprobs,
    chat_stream,
    completion_logprobs,
    completion_stream,
    generate_logprobs,
    usage,
    version_spans,
)
from atroposlib.inference.http.service import InferenceService

COMPLETION_MAX_TOKENS = 16  # the default of OpenAI and vLLM for raw prompts


def openai_router(service: InferenceService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/models")
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

    @routes.post("/v1/chat/completions", response_class=JsonResponse)
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
            return chat_stream(service, prompt_ids, body, head, options)
        request = service.request(prompt_ids, body, **options)
        (result,) = await service.run([request], http)
        choices = _chat_choices(service, body, result.outputs)
        extra: Json = {"prompt_token_ids": prompt_ids} if body.return_token_ids else {}
        total = usage(len(prompt_ids), result.outputs)
        return JsonResponse({**head, "choices": choices, "usage": total, **extra})

    @routes.post("/v1/completions", response_class=JsonResponse)
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
            return completion_stream(service, prompts[0], body, head, options)
        requests = [service.request(prompt, body, **options) for prompt in prompts]
        results = await service.run(requests, http)
        choices: list[Json] = []
        for prompt, result in zip(prompts, results):
            choices += _completion_choices(service, body, prompt, result.outputs, len(choices))
        outputs = [output for result in results for output in result.outputs]
        total = usage(sum(map(len, prompts)), outputs)
        return JsonResponse({**head, "choices": choices, "usage": total})

    return routes


def generate_router(service: InferenceService) -> APIRouter:
    """vLLM's /generate: tokens in, tokens and logprobs out."""
    routes = APIRouter()

    @routes.post("/generate", response_class=JsonResponse)
    async def generate(body: GenerateRequest, http: Request) -> JsonResponse:
        if body.stream:
            raise InferenceRefused(400, "/generate does not stream; /v1/completions does")
        if isinstance(body.prompt, TokenPrompt):
            prompt_ids = body.prompt.prompt_token_ids
        else:
            prompt_ids = service.encode(body.prompt)
        top = body.logprobs or 0
        request = service.request(
            prompt_ids,
            body,
            default_max_tokens=COMPLETION_MAX_TOKENS,
            top=top,
            prompt_logprobs=body.prompt_logprobs,
        )
        (result,) = await service.run([request], http)
        outputs = result.outputs
        reply: Json = {
            "text": service.detokenizer.texts(outputs),
            "prompt": body.prompt if isinstance(body.prompt, str) else None,
            "finish_reasons": [output.finish_reason.value for output in outputs],
            "prompt_token_ids": prompt_ids,
            "token_ids": [output.tokens for output in outputs],
            "weight_versions": [version_spans(output) for output in outputs],
        }
        if body.logprobs is not None:
            reply["logprobs"] = [generate_logprobs(output, top) for output in outputs]
        if body.prompt_logprobs is not None:
            reply["prompt_logprobs"] = [
                None if entry is None else [entry] for entry in result.prompt_logprobs or []
            ]
        return JsonResponse(reply)

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
    detokenizer = service.detokenizer
    choices: list[Json] = []
    for index, (text, output) in enumerate(zip(detokenizer.texts(outputs), outputs)):
        logprobs = None
        if body.logprobs:
            logprobs = chat_logprobs(output.tokens, output.logprobs, output.top, detokenizer)
        choice: Json = {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "logprobs": logprobs,
            "finish_reason": output.finish_reason.value,
            "weight_versions": version_spans(output),
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
    detokenizer = service.detokenizer
    choices: list[Json] = []
    for index, (text, output) in enumerate(
        zip(detokenizer.texts(outputs), outputs), first_index
    ):
        logprobs = None
        if body.logprobs is not None:
            logprobs = completion_logprobs(
                output.tokens, output.logprobs, output.top, detokenizer
            )
        choice: Json = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason.value,
            "weight_versions": version_spans(output),
        }
        if body.return_token_ids:
            choice["token_ids"] = output.tokens
            choice["prompt_token_ids"] = prompt_ids
        choices.append(choice)
    return choices
