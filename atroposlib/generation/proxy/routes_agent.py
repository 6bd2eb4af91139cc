"""Routes of agents: the APIs below ``/{uuid}/v1``, and below ``/v1`` by API key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from atroposlib.errors import AtroposError, ContextFull, InferenceRefused, UnknownSession
from atroposlib.generation.proxy.apis import APIS, AgentApi
from atroposlib.generation.proxy.apis.agent_api import (
    anthropic_body,
    error_text,
    openai_body,
    status_of,
)
from atroposlib.generation.proxy.apis.exchange import Json, SamplingResponse
from atroposlib.generation.proxy.apis.idempotency import CallIdentity, IdempotentCall
from atroposlib.generation.proxy.auth import ProxyAuth, key_of, read_body
from atroposlib.generation.proxy.session import ProxySession
from atroposlib.generation.proxy.sessions import Sessions

PREFIXES = ("/{session_id}/v1", "/v1")
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def router(sessions: Sessions, auth: ProxyAuth) -> APIRouter:
    routes = APIRouter()

    def session_of(request: Request) -> ProxySession:
        """By the id in the path, else by the API key."""
        session_id = request.path_params.get("session_id")
        if session_id is None:
            return sessions.of_key(key_of(request))
        session = sessions.find(session_id)
        auth.require_session_access(request, session)
        return session

    async def body_of(request: Request) -> tuple[bytes, Json]:
        body = await read_body(request, sessions.limits.max_body_bytes)
        return body, body_object(body)

    def sampling_route(name: str) -> Any:
        async def sample(request: Request) -> Response:
            session = session_of(request)
            body, raw = await body_of(request)
            api = APIS[name](session, raw)
            call = session.call(api.request, CallIdentity.of(name, body, request.headers))
            if api.stream:
                return await _stream_response(api, call, sessions.limits.keep_alive_s)
            await asyncio.wait({call.task})
            reply = api.reply(_response_of(call))
            if not call.delivered and not await request.is_disconnected():
                call.mark_delivered()
            session.touch()
            return json_reply(reply)

        return sample

    def rendering_route(name: str, shown: Any) -> Any:
        async def render(request: Request) -> Response:
            session = session_of(request)
            _, raw = await body_of(request)
            text, ids = await session.prompt(APIS[name](session, raw).request)
            return json_reply(shown(text, ids))

        return render

    async def models(request: Request) -> Response:
        if "session_id" in request.path_params:
            session_of(request)
        of_model = {"id": sessions.model_name, "object": "model"}
        card = {**of_model, "created": 0, "owned_by": "atropos"}
        listed = {"object": "list", "data": [card]}
        return json_reply(card if "model" in request.path_params else listed)

    for prefix in PREFIXES:
        for name in APIS:
            routes.add_api_route(f"{prefix}/{name}", sampling_route(name), methods=["POST"])
        for name, shown in (
            ("chat/completions/render", _whole_prompt),
            ("messages/count_tokens", _token_count),
        ):
            handler = rendering_route(name.rpartition("/")[0], shown)
            routes.add_api_route(f"{prefix}/{name}", handler, methods=["POST"])
        routes.add_api_route(f"{prefix}/models", models, methods=["GET"])
        routes.add_api_route(f"{prefix}/models/{{model:path}}", models, methods=["GET"])
    return routes


async def _stream_response(
    api: AgentApi[Any], call: IdempotentCall, keep_alive_s: float
) -> Response:
    """Stream the response. A failure after ``keep_alive_s`` becomes a frame, not a status."""
    await asyncio.wait({call.task}, timeout=keep_alive_s)
    if call.task.done():
        _response_of(call)

    async def frames() -> AsyncIterator[bytes]:
        while not call.task.done():
            yield api.keep_alive
            await asyncio.wait({call.task}, timeout=keep_alive_s)
        try:
            response = _response_of(call)
        except AtroposError as error:
            yield api.error_frame(status_of(error), error_text(error))
            return
        for frame in api.frames(response):
            yield frame
        call.mark_delivered()

    return StreamingResponse(frames(), media_type="text/event-stream", headers=STREAM_HEADERS)


def _response_of(call: IdempotentCall) -> SamplingResponse:
    if call.task.cancelled():
        raise UnknownSession("the session was closed during the call")
    return call.task.result()


def _whole_prompt(text: str, ids: list[int]) -> Json:
    return {"prompt_text": text, "token_ids": ids, "num_tokens": len(ids)}


def _token_count(text: str, ids: list[int]) -> Json:
    return {"input_tokens": len(ids)}


def body_object(body: bytes) -> Json:
    """Decode a JSON object; an empty body is an empty object. Raises InferenceRefused (400)."""
    try:
        value = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InferenceRefused(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InferenceRefused(400, "the body is not a JSON object")
    return value


def json_reply(payload: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(payload), status, media_type="application/json")


async def on_error(request: Request, error: Exception) -> Response:
    """The response to an error, in the shape of the API that was called."""
    if isinstance(error, HTTPException):
        status, message = error.status_code, str(error.detail)
    else:
        status, message = status_of(error), error_text(error)
    if "/v1/messages" in request.url.path:
        body = anthropic_body(status, message)
    else:
        code = "context_length_exceeded" if isinstance(error, ContextFull) else None
        body = openai_body(status, message, code)
    reply = json_reply(body, status)
    if status == 401:
        reply.headers["WWW-Authenticate"] = "Bearer"
    return reply
