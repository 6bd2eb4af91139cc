"""The proxy as an application: guard, routes and errors around the sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from atroposlib.errors import AtroposError
from atroposlib.generation.proxy import routes_agent, routes_session, routes_sessions
from atroposlib.generation.proxy.apis.errors import (
    anthropic_body,
    message_of,
    openai_body,
    status_of,
)
from atroposlib.generation.proxy.auth import Gate, refuse_page
from atroposlib.generation.proxy.placement import Servers
from atroposlib.generation.proxy.routes_agent import json_reply
from atroposlib.generation.proxy.sessions import Limits, Sessions
from atroposlib.utils.http_server import HostGuard, SameSiteGuard


def create_app(
    server_manager: Servers,
    tokenizer: Any,
    model_name: str = "unknown",
    *,
    admin_token: str | None = None,
    limits: Limits = Limits(),
    allowed_hosts: Iterable[str] = (),
) -> FastAPI:
    """The proxy over the servers of ``server_manager``.

    Args:
        tokenizer: that of the model; None loads the one its servers' configs name.
        model_name: what agents are told, whatever model they ask for.
        admin_token: needed for opening sessions and for everything about all of them.
        allowed_hosts: names of this proxy that have a dot, such as proxy.example.org.
    """
    sessions = Sessions(server_manager, tokenizer, model_name, limits)
    gate = Gate(admin_token)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        expiry = asyncio.create_task(sessions.expire_forever(), name="proxy session expiry")
        try:
            yield
        finally:
            expiry.cancel()
            await asyncio.gather(expiry, return_exceptions=True)
            await sessions.shut_down()

    app = FastAPI(
        title="Atropos managed-server proxy",
        lifespan=lifespan,
        openapi_url=None,  # bodies are those of other people's APIs: it would say nothing
    )
    app.state.sessions = sessions
    for routes in (routes_sessions, routes_session, routes_agent):
        app.include_router(routes.router(sessions, gate))
    app.add_middleware(HostGuard, allowed=tuple(allowed_hosts), refuse=refuse_page)
    app.add_middleware(SameSiteGuard, refuse=refuse_page)
    app.add_exception_handler(AtroposError, _on_error)
    app.add_exception_handler(HTTPException, _on_http)
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    return _problem(request, status_of(error), message_of(error))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(request, error.status_code, str(error.detail))


def _problem(request: Request, status: int, message: str) -> Response:
    speaks_anthropic = "/v1/messages" in request.url.path
    body = anthropic_body if speaks_anthropic else openai_body
    reply = json_reply(body(status, message), status)
    if status == 401:
        reply.headers["WWW-Authenticate"] = "Bearer"
    return reply
