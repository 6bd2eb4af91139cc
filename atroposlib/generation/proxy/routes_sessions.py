"""What the owner of the proxy calls: its servers, and opening and listing sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atroposlib.generation.proxy.apis.request import Json, parsed
from atroposlib.generation.proxy.auth import Gate, read_body
from atroposlib.generation.proxy.config import Setup, tokenizer_of
from atroposlib.generation.proxy.placement import address_of
from atroposlib.generation.proxy.routes_agent import json_object, json_reply
from atroposlib.generation.proxy.session import Session, Settings
from atroposlib.generation.proxy.sessions import Sessions
from atroposlib.generation.routing.failover import is_up


class OpenBody(msgspec.Struct, kw_only=True):
    """POST /sessions/create. The last three are settings of ours."""

    tool_parser: str | None = "hermes"
    track_tree: bool = False
    base_url: str | None = None
    preserve_think_blocks: bool = False
    split: str = "train"
    sampling: dict[str, Any] = {}


def router(sessions: Sessions, gate: Gate) -> APIRouter:
    routes = APIRouter()

    async def body_of(request: Request) -> Json:
        return json_object(await read_body(request, sessions.limits.max_body_bytes))

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
        gate.require_owner(request)
        found = [described_server(i, s) for i, s in enumerate(sessions.manager.servers)]
        return json_reply({"servers": found})

    @routes.post("/setup")
    async def setup(request: Request) -> Response:
        gate.require_admin(request)
        wanted = Setup.of(await body_of(request))
        tokenizer = sessions.tokenizer
        if wanted.tokenizer_name:
            tokenizer = await asyncio.to_thread(tokenizer_of, wanted)
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
        gate.require_owner(request)
        wanted = parsed(await body_of(request), OpenBody)
        settings = Settings(
            tool_parser=wanted.tool_parser,
            track_tree=wanted.track_tree,
            preserve_think_blocks=wanted.preserve_think_blocks,
            split=wanted.split,
            sampling=wanted.sampling,
        )
        session = await sessions.open(settings, wanted.base_url)
        return json_reply(
            {
                **described(session),
                "tool_parser": wanted.tool_parser,
                "api_key": session.api_key,
            }
        )

    @routes.get("/sessions")
    async def listing(request: Request) -> Response:
        gate.require_owner(request)
        await sessions.expire()
        found = [
            {
                **described(session),
                "last_accessed": session.last_accessed,
                "num_nodes": len(session.nodes()),
            }
            for session in sessions.all
        ]
        return json_reply({"sessions": found})

    return routes


def described(session: Session) -> Json:
    return {
        "uuid": session.uuid,
        "model_name": session.model_name,
        "base_url": session.base_url,
        "created_at": session.created_at,
    }


def described_server(index: int, server: Any) -> Json:
    return {
        "index": index,
        "base_url": address_of(server),
        "healthy": is_up(server),
        "model_name": server.config.model_name,
        "server_type": server.config.server_type,
    }
