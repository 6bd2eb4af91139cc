"""Proxy server: gives any agent a ``base_url`` and returns its token-exact training rows.

    python -m atroposlib.generation.proxy.main --config servers.json

    POST /sessions/create -> uuid, api_key
    agent: base_url http://localhost:9100/<uuid>/v1, or /v1 with the session's API key
    GET /<uuid>/nodes, GET /sessions/<uuid>/rows, DELETE /<uuid>

Serves OpenAI's chat, completions and Responses and Anthropic's Messages, with tools and
streams. See docs/agents.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.errors import AtroposError
from atroposlib.generation.proxy import ProxyLimits
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import PORT, CommandParser
from atroposlib.utils.http.serve import run_app
from atroposlib.utils.http.sockets import bind, refuse_exposure

if TYPE_CHECKING:
    from fastapi import FastAPI

    from atroposlib.generation.proxy.sessions import Servers

__all__ = ["ProxyLimits", "create_app", "main"]

TOKEN_VARIABLE = "ATROPOS_PROXY_TOKEN"
DEFAULT_PORT = 9100
BACKLOG = 2048


# --- application ----------------------------------------------------------------------


def create_app(
    server_manager: Servers,
    tokenizer: Any,
    model_name: str = "unknown",
    *,
    admin_token: str | None = None,
    limits: ProxyLimits = ProxyLimits(),
    allowed_hosts: Iterable[str] = (),
) -> FastAPI:
    """The proxy over the servers of ``server_manager``.

    Args:
        tokenizer: tokenizer of the model; None loads the tokenizer that the servers' configs name.
        model_name: returned to agents; the model name in their requests is ignored.
        admin_token: needed to open sessions, and to list or configure sessions and servers.
        allowed_hosts: names of this proxy that have a dot, like proxy.example.org.
    """
    # Imported here, because --help and a wrong flag need no web packages.
    from fastapi import FastAPI
    from starlette.exceptions import HTTPException

    from atroposlib.generation.proxy import routes_agent, routes_owner
    from atroposlib.generation.proxy.auth import ProxyAuth, refuse_page
    from atroposlib.generation.proxy.sessions import Sessions
    from atroposlib.utils.http.gate import Gate
    from atroposlib.utils.http.web_pages import page_checks

    sessions = Sessions(server_manager, tokenizer, model_name, limits)
    auth = ProxyAuth(admin_token)

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
        openapi_url=None,  # the bodies follow OpenAI's and Anthropic's APIs
    )
    app.state.sessions = sessions
    app.include_router(routes_owner.router(sessions, auth))
    app.include_router(routes_agent.router(sessions, auth))
    app.add_exception_handler(AtroposError, routes_agent.on_error)
    app.add_exception_handler(HTTPException, routes_agent.on_error)
    checks = page_checks(refuse_page, allowed_hosts)
    app.middleware_stack = Gate(app.build_middleware_stack(), checks)
    return app


# --- command line ---------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted; returns the exit status."""
    options = parse_args(argv)
    logs.configure("proxy", options.log_format, options.log_level)
    try:
        serve(options)
    except AtroposError as error:
        logs.report("proxy", error)
        return 1
    return 0


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m atroposlib.generation.proxy.main",
        description="Gives any agent a base_url and returns its token-exact training rows.",
        variables=(f"{TOKEN_VARIABLE}: the admin token",),
    )
    limits = ProxyLimits()
    add = parser.add_argument
    add("--config", type=Path, required=True, help="JSON: model_name and servers")
    add("--port", type=PORT, default=DEFAULT_PORT, help="0: a free one (default %(default)s)")
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    about = "permit an address that other machines reach without an admin token"
    add("--allow-remote", action="store_true", help=about)
    about = "a host name of this proxy that has a dot; may be repeated"
    add("--allow-host", action="append", default=[], metavar="NAME", help=about)
    add("--max-sessions", type=int, default=limits.max_sessions, help="default %(default)s")
    about = "seconds without calls after which a session is closed (default %(default)s)"
    add("--idle-s", type=float, default=limits.idle_s, help=about)
    return parser.parse_args(argv)


def serve(options: argparse.Namespace) -> None:
    """Serve until interrupted. Raises ConfigError for a setting that cannot be used."""
    from atroposlib.generation.proxy.sessions import Setup

    admin_token = os.environ.get(TOKEN_VARIABLE) or None
    advice = (
        f"set {TOKEN_VARIABLE}, or add --allow-remote on a network whose users may all use and "
        "configure the proxy"
    )
    refuse_exposure(options.host, advice, allowed=bool(admin_token or options.allow_remote))
    setup = Setup.read(options.config)
    # bound before the tokenizer loads
    with bind(options.host, options.port, BACKLOG) as listener:
        app = create_app(
            setup.manager(),
            setup.tokenizer(),
            setup.model_name,
            admin_token=admin_token,
            limits=ProxyLimits(max_sessions=options.max_sessions, idle_s=options.idle_s),
            allowed_hosts=options.allow_host,
        )
        host, port = listener.getsockname()[:2]
        print(f"proxy of {setup.model_name} on http://{host}:{port}", flush=True)
        run_app(app, listener)


if __name__ == "__main__":
    raise SystemExit(main())
