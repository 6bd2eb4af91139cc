"""HTTP application around an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError

from atroposlib.errors import (
    AtroposError,
    InferenceRefused,
    InferenceUnavailable,
    WeightsError,
)
from atroposlib.inference.engine.earlier import EarlierVersions
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.http.responses import Json, JsonResponse
from atroposlib.inference.http.routes_control import (
    control_router,
    group_router,
    weights_router,
)
from atroposlib.inference.http.routes_generation import generate_router, openai_router
from atroposlib.inference.http.service import InferenceService
from atroposlib.inference.http.weight_group import WeightGroup
from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS
from atroposlib.utils.http.web_pages import page_checks

STATUS_OF = {WeightsError: 400, InferenceUnavailable: 503}


def create_app(
    engine: Engine, names: Sequence[str] = (), earlier: EarlierVersions | None = None
) -> FastAPI:
    """Routes over a started engine. The engines are closed with the application's lifespan.

    Args:
        names: names of this server for clients, besides loopback names and names without a dot.
        earlier: versions that requests reach by their names; None: the present version alone.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        group.leave()
        engine.close()
        if earlier is not None:
            earlier.close()

    # FastAPI's /docs would load its scripts from a CDN; /openapi.json stays.
    app = FastAPI(
        title="Atropos local inference", lifespan=lifespan, docs_url=None, redoc_url=None
    )
    service, group = InferenceService(engine, earlier), WeightGroup()
    app.include_router(openai_router(service))
    app.include_router(generate_router(service))
    app.include_router(control_router(service))
    app.include_router(weights_router(service))
    app.include_router(group_router(service, group))

    @app.get("/health")
    async def health() -> Json:
        return {"status": "ok", "paused": engine.is_paused}

    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(AtroposError, _on_error)

    def version_header() -> dict[str, str]:
        """The version when the response begins; in every response."""
        return {"X-Weight-Version": str(engine.weight_version)}

    # A web page must not pause a run.
    checks = page_checks(error_reply, (*LOOPBACK_HOSTS, *names))
    app.middleware_stack = Gate(app.build_middleware_stack(), checks, headers=version_header)
    return app


async def _on_invalid(_: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return error_reply(400, f"{where}: {first['msg']}" if where else first["msg"])


async def _on_error(_: Request, error: Exception) -> JsonResponse:
    if isinstance(error, InferenceRefused):
        return error_reply(error.status_code, error.detail)
    kinds = (status for kind, status in STATUS_OF.items() if isinstance(error, kind))
    return error_reply(next(kinds, 500), str(error))


def error_reply(status: int, message: str) -> JsonResponse:
    """An error in the OpenAI shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return JsonResponse(body, status_code=status)
