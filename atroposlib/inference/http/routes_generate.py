"""POST /generate: tokens in, tokens and logprobs out, in the shape of vLLM's demo server."""

from __future__ import annotations

from fastapi import APIRouter, Request

from atroposlib.errors import InferenceRefused
from atroposlib.inference.http.protocol import GenerateRequest, TokenPrompt
from atroposlib.inference.http.replies import (
    Json,
    JsonResponse,
    generate_logprobs,
    version_spans,
)
from atroposlib.inference.http.service import InferenceService

DEFAULT_MAX_TOKENS = 16  # vLLM's default for raw prompts


def router(service: InferenceService) -> APIRouter:
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
            default_max_tokens=DEFAULT_MAX_TOKENS,
            top=top,
            prompt_logprobs=body.prompt_logprobs,
        )
        (result,) = await service.run([request], http)
        outputs = result.outputs
        reply: Json = {
            "text": service.names.texts(outputs),
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
