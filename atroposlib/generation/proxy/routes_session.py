"""What the owner of one session calls: reward it, export it, reset it, close it."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atroposlib.errors import InferenceRefused
from atroposlib.generation.proxy.apis.request import parsed
from atroposlib.generation.proxy.auth import Gate, read_body
from atroposlib.generation.proxy.routes_agent import json_object, json_reply
from atroposlib.generation.proxy.session import Session
from atroposlib.generation.proxy.sessions import Sessions


class RewardBody(msgspec.Struct, kw_only=True):
    """POST /sessions/{id}/reward. No completion: the session as a whole."""

    reward: float
    completion_id: str | None = None  # an id as the agent saw it, or "last"


def router(sessions: Sessions, gate: Gate) -> APIRouter:
    routes = APIRouter()

    def session_of(request: Request, session_id: str) -> Session:
        session = sessions.find(session_id)
        gate.require_party(request, session)
        return session

    @routes.post("/sessions/{session_id}/reward")
    async def reward(session_id: str, request: Request) -> Response:
        session = session_of(request, session_id)
        given = parsed(
            json_object(await read_body(request, sessions.limits.max_body_bytes)), RewardBody
        )
        completion = session.reward(given.reward, given.completion_id)
        return json_reply(
            {"uuid": session.uuid, "completion_id": completion, "reward": given.reward}
        )

    @routes.post("/sessions/{session_id}/reset")
    async def reset(session_id: str, request: Request) -> Response:
        session = session_of(request, session_id)
        await session.reset()
        return json_reply({"status": "reset", "uuid": session.uuid})

    @routes.get("/sessions/{session_id}/rows")
    async def rows(session_id: str, request: Request) -> Response:
        session = session_of(request, session_id)
        discount = discount_of(request.query_params.get("discount", "1"))
        found = {"uuid": session.uuid, "model_name": session.model_name}
        return json_reply({**found, "rows": session.rows(discount)})

    @routes.get("/{session_id}/nodes")
    async def nodes(session_id: str, request: Request) -> Response:
        session = session_of(request, session_id)
        found = session.nodes(request.query_params.get("completion_id"))
        return json_reply({"nodes": [node.model_dump() for node in found]})

    @routes.delete("/{session_id}")
    async def delete(session_id: str, request: Request) -> Response:
        session = session_of(request, session_id)
        await sessions.close(session)
        return json_reply({"status": "deleted", "uuid": session.uuid})

    return routes


def discount_of(text: str) -> float:
    """
    Raises:
        InferenceRefused: 400; not a number from 0 to 1.
    """
    try:
        discount = float(text)
    except ValueError:
        discount = -1.0
    if not 0.0 <= discount <= 1.0:
        raise InferenceRefused(400, "discount: a number from 0 to 1")
    return discount
