"""Routes of the owner: servers, opening and listing sessions, rewards, rows, closing."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from atroposlib.errors import InferenceRefused
from atroposlib.generation.proxy.apis.exchange import Json, parse_body
from atroposlib.generation.proxy.auth import ProxyAuth, read_body
from atroposlib.generation.proxy.routes_agent import body_object, json_reply
from atroposlib.generation.proxy.session import ProxySession, SessionSettings
from atroposlib.generation.proxy.sessions import Sessions, Setup, base_url_of
from atroposlib.generation.routing.failover import is_up

B = TypeVar("B")


class OpenBody(SessionSettings, kw_only=True, frozen=True):
    """POST /sessions/create; think blocks, split and sampling are additions to the original."""

    base_url: str | None = None  # address of an inference server of the proxy


class RewardBody(msgspec.Struct, kw_only=True):
    """POST /sessions/{id}/reward. Without a completion it rewards the whole session."""

    reward: float
    completion_id: str | None = None  # an id as the agent received it, or "last"


def router(sessions: Sessions, auth: ProxyAuth) -> APIRouter:
    routes = APIRouter()
    _add_proxy_routes(routes, sessions, auth)
    _add_session_routes(routes, sessions, auth)
    return routes


async def _body_of(request: Request, sessions: Sessions, shape: type[B]) -> B:
    body = await read_body(request, sessions.limits.max_body_bytes)
    return parse_body(body_object(body), shape)


# --- all sessions ---------------------------------------------------------------------


def _add_proxy_routes(routes: APIRouter, sessions: Sessions, auth: ProxyAuth) -> None:
    @routes.get("/health")
    async def health() -> Response:
        servers = sessions.manager.servers
        return json_reply(
            {
                "status": "ok",
                "model": sessions.model_name,
                "sessions": len(sessions),
                "servers": len(servers),
                "healthy_servers": sum(map(is_up, servers)),
            }
        )

    @routes.get("/servers")
    async def servers(request: Request) -> Response:
        auth.require_admin_token(request)
        entries = [_server_json(i, s) for i, s in enumerate(sessions.manager.servers)]
        return json_reply({"servers": entries})

    @routes.post("/setup")
    async def setup(request: Request) -> Response:
        auth.require_setup_access(request)
        wanted = await _body_of(request, sessions, Setup)
        tokenizer = sessions.tokenizer
        if wanted.tokenizer_name:
            tokenizer = await asyncio.to_thread(wanted.tokenizer)
        manager = wanted.manager()
        await sessions.replace_servers(manager, wanted.model_name, tokenizer)
        return json_reply(
            {
                "status": "ok",
                "servers": len(manager.servers),
                "model_name": wanted.model_name,
            }
        )

    @routes.post("/sessions/create")
    async def create(request: Request) -> Response:
        auth.require_admin_token(request)
        wanted = await _body_of(request, sessions, OpenBody)
        session = await sessions.open(wanted, wanted.base_url)
        keys = {"tool_parser": wanted.tool_parser, "api_key": session.api_key}
        return json_reply({**_session_json(session), **keys})

    @routes.get("/sessions")
    async def listing(request: Request) -> Response:
        auth.require_admin_token(request)
        await sessions.expire()
        entries = [
            {
                **_session_json(session),
                "last_accessed": session.last_accessed,
                "num_nodes": len(session.nodes()),
            }
            for session in sessions.all
        ]
        return json_reply({"sessions": entries})


def _session_json(session: ProxySession) -> Json:
    return {
        "uuid": session.uuid,
        "model_name": session.model_name,
        "base_url": session.base_url,
        "created_at": session.created_at,
    }


def _server_json(index: int, server: Any) -> Json:
    return {
        "index": index,
        "base_url": base_url_of(server),
        "healthy": is_up(server),
        "model_name": server.config.model_name,
        "server_type": server.config.server_type,
    }


# --- a session ----------------------------------------------------------------------


def _add_session_routes(routes: APIRouter, sessions: Sessions, auth: ProxyAuth) -> None:
    async def session_of(request: Request, session_id: str) -> ProxySession:
        session = sessions.find(session_id)
        auth.require_session_access(request, session)
        return session

    @routes.post("/sessions/{session_id}/reward")
    async def reward(
        request: Request, session: ProxySession = Depends(session_of)
    ) -> Response:
        body = await _body_of(request, sessions, RewardBody)
        completion = session.reward(body.reward, body.completion_id)
        return json_reply(
            {"uuid": session.uuid, "completion_id": completion, "reward": body.reward}
        )

    @routes.post("/sessions/{session_id}/reset")
    async def reset(session: ProxySession = Depends(session_of)) -> Response:
        await session.reset()
        return json_reply({"status": "reset", "uuid": session.uuid})

    @routes.get("/sessions/{session_id}/rows")
    async def rows(
        discount: str = "1", session: ProxySession = Depends(session_of)
    ) -> Response:
        identity = {"uuid": session.uuid, "model_name": session.model_name}
        return json_reply({**identity, "rows": session.rows(discount_of(discount))})

    @routes.get("/{session_id}/nodes")
    async def nodes(
        completion_id: str | None = None, session: ProxySession = Depends(session_of)
    ) -> Response:
        session_nodes = session.nodes(completion_id)
        return json_reply({"nodes": [node.model_dump() for node in session_nodes]})

    @routes.delete("/{session_id}")
    async def delete(session: ProxySession = Depends(session_of)) -> Response:
        await sessions.close(session)
        return json_reply({"status": "deleted", "uuid": session.uuid})


def discount_of(text: str) -> float:
    """Raises InferenceRefused (400) for a text that is no number from 0 to 1."""
    try:
        discount = float(text)
    except ValueError:
        discount = -1.0
    if not 0.0 <= discount <= 1.0:
        raise InferenceRefused(400, "discount: a number from 0 to 1")
    return discount
