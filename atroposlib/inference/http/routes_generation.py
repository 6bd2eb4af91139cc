"""Routes that sample: OpenAI's /v1/completions and /v1/chat/completions, vLLM's /generate."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from atroposlib.errors import InferenceRefused
from atroposlib.inference.http.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    TokenPrompt,
)
from atroposlib.inference.http.responses import (
    CHAT,
    COMPLETION,
    Json,
    JsonResponse,
    OpenAIReply,
    generate_logprobs,
    routed_experts,
)
from atroposlib.inference.http.service import InferenceService


def openai_router(service: InferenceService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/models")
    async def models() -> Json:
        served, earlier = service.served, service.earlier
        card = {
            "id": served.name,
            "object": "model",
            "created": 0,
            "owned_by": "atropos-local",
            "root": served.path,
            "max_model_len": served.max_model_len,
        }
        names = earlier.names(service.engine.weight_version) if earlier else []
        versions = [{**card, "id": name, "parent": served.name} for name in names]
        return {"object": "list", "data": [card, *versions]}

    @routes.post("/tokenize")
    async def tokenize(body: CompletionRequest) -> Json:
        return {"tokens": _prompts(service, body)[0]}

    @routes.post("/v1/chat/completions", response_class=JsonResponse)
    async def chat(body: ChatRequest, http: Request) -> Response:
        prompt_ids, pictures = await service.chat_prompt(
            body.messages,
            add_generation_prompt=body.add_generation_prompt
            and not body.continue_final_message,
            continue_final_message=body.continue_final_message,
            tools=body.tools,
            **body.chat_template_kwargs,
        )
        of_version = service.of(body.model)
        reply = OpenAIReply(CHAT, of_version, body)
        request = of_version.request(prompt_ids, body, pictures=pictures)
        if body.stream:
            return reply.stream(request)
        (result,) = await of_version.run([request], http)
        extra: Json = {"prompt_token_ids": prompt_ids} if body.return_token_ids else {}
        choices = reply.choices(result.outputs)
        return reply.whole(choices, len(prompt_ids), result.outputs, **extra)

    @routes.post("/v1/completions", response_class=JsonResponse)
    async def completions(body: CompletionRequest, http: Request) -> Response:
        prompts = _prompts(service, body)
        of_version = service.of(body.model)
        reply = OpenAIReply(COMPLETION, of_version, body)
        if body.stream:
            if len(prompts) > 1:
                raise InferenceRefused(400, "a stream serves one prompt, not several")
            return reply.stream(of_version.request(prompts[0], body))
        requests = [of_version.request(prompt, body) for prompt in prompts]
        results = await of_version.run(requests, http)
        made: list[Json] = []
        for prompt, result in zip(prompts, results):
            extra: Json = {"prompt_token_ids": prompt} if body.return_token_ids else {}
            for choice in reply.choices(result.outputs):
                made.append({**choice, "index": len(made), **extra})
        outputs = [output for result in results for output in result.outputs]
        return reply.whole(made, sum(map(len, prompts)), outputs)

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
        of_version = service.of(body.model)
        request = of_version.request(prompt_ids, body, prompt_logprobs=body.prompt_logprobs)
        (result,) = await of_version.run([request], http)
        outputs = result.outputs
        reply: Json = {
            "text": service.detokenizer.texts(outputs),
            "prompt": body.prompt if isinstance(body.prompt, str) else None,
            "finish_reasons": [output.finish_reason.value for output in outputs],
            "prompt_token_ids": prompt_ids,
            "token_ids": [output.tokens for output in outputs],
            "weight_versions": [output.versions for output in outputs],
        }
        if body.return_routed_experts:
            reply["routed_experts"] = list(map(routed_experts, outputs))
        if body.logprobs is not None:
            reply["logprob_kind"] = "scaled"  # see engine/sampling.py
            reply["logprobs"] = [generate_logprobs(o, body.logprobs) for o in outputs]
        if body.prompt_logprobs is not None:
            reply["prompt_logprobs"] = [
                None if entry is None else [entry] for entry in result.prompt_logprobs or []
            ]
        return JsonResponse(reply)

    return routes


def _prompts(service: InferenceService, body: CompletionRequest) -> list[list[int]]:
    """The four accepted forms of ``prompt``, all as lists of token ids."""
    prompt: Any = body.prompt
    if not prompt:
        raise InferenceRefused(400, "the prompt is empty")
    several = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    special = body.add_special_tokens
    return [
        service.encode(p, add_special_tokens=special) if isinstance(p, str) else p
        for p in several
    ]
