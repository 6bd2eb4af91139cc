"""HTTP of operations: health, metrics and the stream of events."""

from __future__ import annotations

from time import monotonic

import anyio
from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from atroposlib import wire
from atroposlib.api.run.events import Subscription, frames
from atroposlib.api.run.metrics import CONTENT_TYPE
from atroposlib.api.run.service import RolloutService
from atroposlib.api.store.sql.run import LoadRun
from atroposlib.api.web.openapi import refusals
from atroposlib.api.web.routes import JsonRoute, of_json

STORE_TIMEOUT_S = 2.0
HEALTH_CACHE_S = 1.0  # /health needs no token, and must not load the disk


def ops_routes(service: RolloutService) -> APIRouter:
    """Routes for operators, scrapers and dashboards."""
    router = APIRouter(tags=["operations"], route_class=JsonRoute)
    health_of = Health(service)

    @router.get("/health", responses=refusals())
    async def health() -> Response:
        problem = await health_of.problem()
        if problem is None:
            return of_json({"status": "ok"})
        return of_json({"status": "store_silent", "detail": problem}, 503)

    @router.get("/metrics", response_class=PlainTextResponse, responses=refusals())
    async def metrics() -> Response:
        status = await service.figures()
        page = await in_thread(service.metrics.exposition, status)
        return Response(page, headers={"content-type": CONTENT_TYPE})

    @router.post("/steer", responses=refusals(404))
    async def steer(body: wire.SteerRequest) -> Response:
        return of_json({"steering": await service.steer(body)})

    @router.get("/explore/why", responses=refusals())
    async def why() -> Response:
        response = of_json((await service.status()).verdict)
        response.headers["cache-control"] = "no-store"
        return response

    @router.get("/events", response_class=StreamingResponse, responses=refusals())
    async def events(request: Request) -> Response:
        if service.events.full:
            detail = "too many readers of /events: close one, or raise the bound"
            return of_json({"status": "too_many_readers", "detail": detail}, 503)
        reader = service.events.subscribe(request.headers.get("last-event-id"))
        return EventStream(reader)

    return router


class Health:
    """Health of the store. A good result is cached for ``HEALTH_CACHE_S``."""

    def __init__(self, service: RolloutService) -> None:
        self._service = service
        self._good_until = float("-inf")

    async def problem(self) -> str | None:
        """Problem of the store, or None.

        Raises:
            StoreError: reported by the store.
        """
        if monotonic() < self._good_until:
            return None
        with anyio.move_on_after(STORE_TIMEOUT_S):
            await in_thread(self._service.store.ask, LoadRun(), abandon_on_cancel=True)
            self._good_until = monotonic() + HEALTH_CACHE_S
            return None
        return f"the store did not answer within {STORE_TIMEOUT_S:g} s"


class EventStream(StreamingResponse):
    """The events of ``reader`` as text/event-stream, until it ends or the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, reader: Subscription) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(frames(reader), headers=headers)
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also if the client left before the first frame
            self._reader.close()
