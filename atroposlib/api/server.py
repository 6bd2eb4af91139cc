"""The web application of the rollout API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import create_model
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from atroposlib import __version__, wire
from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.index import EXTRA_BYTES
from atroposlib.api.common.records import MAX_DELIVERIES
from atroposlib.api.common.threads import Threads
from atroposlib.api.guards.auth import AuthMiddleware, route_of
from atroposlib.api.guards.body_limits import DEFAULT_MAX_BODY_BYTES, RequestBody
from atroposlib.api.guards.tokens import TokenFile
from atroposlib.api.run.service import RolloutService
from atroposlib.api.store import Store, open_store
from atroposlib.api.web import routing
from atroposlib.api.web.openapi import add_docs, describe
from atroposlib.api.web.routes_batches import batch_routes
from atroposlib.api.web.routes_explore import explore_routes
from atroposlib.api.web.routes_groups import (
    admission_routes,
    data_routes,
    group_routes,
)
from atroposlib.api.web.routes_ops import ops_routes
from atroposlib.api.web.routes_run import poll_routes, run_routes
from atroposlib.ui import page_routes
from atroposlib.utils.http_server import LOOPBACK_HOSTS, HostGuard, PageGuard, SameSiteGuard

STORE_VARIABLE = "ATROPOS_STORE"
DATA_DIR_VARIABLE = "ATROPOS_DATA_DIR"
TOKENS_VARIABLE = "ATROPOS_TOKENS"
HOSTS_VARIABLE = "ATROPOS_ALLOW_HOST"
HOLD_S = 30.0  # maximum wait of a post of the original's form for space in the store


def create_app(
    store: Store | None = None,
    clock: Callable[[], float] | None = None,
    *,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    tokens: TokenFile | None = None,
    allowed_hosts: Iterable[str] | None = None,
    hold_s: float = HOLD_S,
    max_deliveries: int = MAX_DELIVERIES,
    threads: Threads | None = None,
    index_bytes: int = EXTRA_BYTES,
) -> FastAPI:
    """The API over ``store`` (in memory if None), which it closes when it shuts down.

    Args:
        clock: seconds, for leases and liveness; None for that of the store.
        tokens: the callers and their scopes; None allows every call to every caller.
        allowed_hosts: names by which this API is called, in addition to those of loopback;
            None allows any name. Addresses are always allowed.
        hold_s: maximum wait of a post of the original's form for space, then a 503.
        max_deliveries: deliveries of one batch without an ack, after which it is dead.
        threads: run blocking calls.
        index_bytes: of samples of dropped groups, and of the indexes of earlier runs.
    """
    store = open_store("memory") if store is None else store
    service = RolloutService(store, clock or store.now, max_deliveries, threads, index_bytes)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.context.indexer.start()
        yield
        service.close()

    about: dict[str, Any] = {"title": "AtroposLib API", "version": __version__}
    app = routing.GuardedApi(**about, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    refuse = _add_error_handlers(app, service)
    routers = [data_routes(service, hold_s)]
    for routes in (
        poll_routes,
        run_routes,
        batch_routes,
        group_routes,
        admission_routes,
        ops_routes,
    ):
        routers.append(routes(service))
    explorer = Explorer(service.context.indexer.index, store, service.run_facts)
    routers.append(explore_routes(explorer))
    own = [route for router in routers for route in router.routes]
    # Not by include_router, which looks for the route of each request twice.
    app.router.routes.extend([*own, *page_routes()])
    # The last one sees a request first: log, then host, token, site, body.
    guarded: ASGIApp = routing.FastPath(app.guarded, routes=own, refuse=refuse)
    inflating = service.context.threads.inflating
    guarded = RequestBody(guarded, max_body_bytes, inflating=inflating)
    guarded = SameSiteGuard(guarded, _refuse_page, ("/batch", "/reset_data"))
    guarded = AuthMiddleware(guarded, tokens)
    names = None if allowed_hosts is None else (*LOOPBACK_HOSTS, *allowed_hosts)
    guarded = HostGuard(guarded, names, _refuse_page)
    app.guarded = routing.RequestLog(ServerErrorMiddleware(guarded), service.metrics)
    describe(app)
    add_docs(app)
    return app


def create_view(explorer: Explorer) -> FastAPI:
    """The page and the routes of the explorer alone, for a run that has ended."""
    app = FastAPI(title="AtroposLib view", docs_url=None, redoc_url=None, openapi_url=None)
    for kind in routing.STATUS_OF:
        app.add_exception_handler(kind, routing.on_error)
    app.include_router(explore_routes(explorer))
    app.router.routes.extend(page_routes())
    app.add_middleware(PageGuard, refuse=_refuse_page)
    return app


def _refuse_page(status: int, detail: str) -> Response:
    """The response to a web page that calls under another name or for another site."""
    word = "cross_site" if status == 403 else "wrong_host"
    response = routing.of_json({"detail": detail, "status": word}, status)
    response.headers["connection"] = "close"
    return response


def _add_error_handlers(app: FastAPI, service: RolloutService) -> routing.ErrorHandler:
    async def refuse(request: Request, error: Exception) -> Response:
        kind = next(kind for kind in type(error).__mro__ if kind in routing.STATUS_OF)
        service.metrics.refused.labels(routing.STATUS_OF[kind][1]).inc()
        return await routing.on_error(request, error)

    async def refuse_message(request: Request, error: Exception) -> Response:
        service.metrics.refused.labels("invalid").inc()
        return await routing.on_invalid_request(request, error)

    async def other_method(request: Request, _: Exception) -> Response:
        # A path may have one route per method; the framework names the methods of one only.
        allowed = [m for m in ("GET", "POST") if route_of(m, request.url.path)]
        response = routing.of_json({"detail": "Method Not Allowed", "status": "method"}, 405)
        response.headers["allow"] = ", ".join(allowed)
        return response

    for kind in routing.STATUS_OF:
        app.add_exception_handler(kind, refuse)
    app.add_exception_handler(405, other_method)
    app.add_exception_handler(RequestValidationError, refuse_message)
    return refuse


def create_app_from_environment() -> FastAPI:
    """The app configured by the ATROPOS_* variables; in memory without them.

    They configure store, tokens and allowed hosts. Limits and logs belong to run-api.
    """
    data_dir = os.environ.get(DATA_DIR_VARIABLE)
    tokens = os.environ.get(TOKENS_VARIABLE)
    store = open_store(
        os.environ.get(STORE_VARIABLE, "memory"), Path(data_dir) if data_dir else None
    )
    names = [name.strip() for name in os.environ.get(HOSTS_VARIABLE, "").split(",")]
    return create_app(
        store,
        tokens=TokenFile(Path(tokens)) if tokens else None,
        allowed_hosts=[name for name in names if name],
    )


def __getattr__(name: str) -> Any:
    # ``uvicorn atroposlib.api:app`` works; importing this module alone opens no store.
    if name == "app":
        app = globals()["app"] = create_app_from_environment()
        return app
    # Messages under the original's path; there they were pydantic models.
    if name in ("EnvIdentifier", "RegisterEnv", "Registration"):
        return getattr(wire, name)
    if name == "ScoredData":
        fields = msgspec.structs.fields(wire.ScoredData)
        typed: Any = {f.name: (f.type, ... if f.required else f.default) for f in fields}
        model = globals()["ScoredData"] = create_model(name, **typed)
        return model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
