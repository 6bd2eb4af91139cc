"""The web application of the rollout API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from pydantic import create_model
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from atroposlib import __version__, wire
from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.index import EXTRA_BYTES
from atroposlib.api.common.pools import Threads
from atroposlib.api.common.records import MAX_DELIVERIES
from atroposlib.api.guards.auth import route_of, token_check
from atroposlib.api.guards.body import DEFAULT_LIMITS, BodyLimits, RequestBody
from atroposlib.api.guards.tokens import TokenFile
from atroposlib.api.run.service import RolloutService
from atroposlib.api.store import Store, open_store
from atroposlib.api.web.errors_http import (
    STATUS_OF,
    ErrorResponses,
    error_response,
    page_response,
)
from atroposlib.api.web.openapi import add_docs, describe
from atroposlib.api.web.request_log import RequestLog
from atroposlib.api.web.routes_batches import batch_routes
from atroposlib.api.web.routes_explore import explore_routes
from atroposlib.api.web.routes_groups import (
    admission_routes,
    data_routes,
    group_routes,
)
from atroposlib.api.web.routes_ops import ops_routes
from atroposlib.api.web.routes_run import poll_routes, run_routes
from atroposlib.ui.routes import page_routes
from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS
from atroposlib.utils.http.web_pages import host_check, page_checks, site_check

STORE_VARIABLE = "ATROPOS_STORE"
DATA_DIR_VARIABLE = "ATROPOS_DATA_DIR"
TOKENS_VARIABLE = "ATROPOS_TOKENS"
HOSTS_VARIABLE = "ATROPOS_ALLOW_HOST"
CHANGING_GETS = ("/batch", "/reset_data")  # the original changes its queue by both
HOLD_S = 30.0  # maximum wait of a post of the original's form for space in the store


class Api(FastAPI):
    """FastAPI without the telemetry of its ``__call__``, which costs a tenth of a poll."""

    __call__ = Starlette.__call__


def create_app(
    store: Store | None = None,
    clock: Callable[[], float] | None = None,
    *,
    max_body_bytes: int = DEFAULT_LIMITS.post_bytes,
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
        allowed_hosts: names by which this API is called, in addition to loopback names;
            None allows any name. Addresses are always allowed.
        hold_s: maximum wait of a post of the original's form for space, then a 503.
        max_deliveries: deliveries of a batch without an ack, after which it is dead.
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
    app = Api(**about, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    # In this order the router looks for the route of a request: posts first.
    routers = [data_routes(service, hold_s)]
    for routes in (
        group_routes,
        poll_routes,
        batch_routes,
        run_routes,
        admission_routes,
        ops_routes,
    ):
        routers.append(routes(service))
    explorer = Explorer(service.context.indexer.index, store, service.run_facts)
    routers.append(explore_routes(explorer))
    # Not by include_router, which looks for the route of each request twice.
    app.router.routes.extend([route for router in routers for route in router.routes])
    app.router.routes.extend(page_routes())
    # FastAPI's own layers are left out: the gate answers errors and body.py bounds bodies.
    inside = AsyncExitStackMiddleware(app.router)
    limits = BodyLimits(post_bytes=max_body_bytes)
    names = None if allowed_hosts is None else (*LOOPBACK_HOSTS, *allowed_hosts)
    app.middleware_stack = Gate(
        RequestBody(inside, limits, service.context.threads.inflating),
        (
            host_check(names, page_response),
            token_check(tokens),
            site_check(page_response, CHANGING_GETS),
        ),
        route_of=route_of,
        respond=ErrorResponses(service.metrics),
        record=RequestLog(service.metrics),
    )
    describe(app)
    add_docs(app)
    return app


def create_view(explorer: Explorer) -> FastAPI:
    """The page and the routes of the explorer alone, for a run that has ended."""
    app = FastAPI(title="AtroposLib view", docs_url=None, redoc_url=None, openapi_url=None)

    async def on_error(_: Request, error: Exception) -> Response:
        return error_response(error)

    for kind in STATUS_OF:
        app.add_exception_handler(kind, on_error)
    app.include_router(explore_routes(explorer))
    app.router.routes.extend(page_routes())
    app.middleware_stack = Gate(app.build_middleware_stack(), page_checks(page_response))
    return app


def create_app_from_environment() -> FastAPI:
    """The app configured by the ATROPOS_* variables; in memory by default.

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
