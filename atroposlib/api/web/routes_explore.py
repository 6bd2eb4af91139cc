"""HTTP of the explorer: what a run sampled, and pins. A router for live and ended runs."""

from __future__ import annotations

from typing import Any

import msgspec
from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.guards.auth import EXPLORED
from atroposlib.api.web.openapi import refusals
from atroposlib.api.web.routes import of_bytes, of_json


def explore_routes(explorer: Explorer) -> APIRouter:
    router = APIRouter(prefix="/explore", tags=["explore"], default_response_class=Response)

    async def answer(request: Request, name: str, *args: Any) -> Response:
        def reply() -> Response:
            query = dict(request.query_params)
            of_run = explorer.of_run(query.pop("run_id", None))
            return of_bytes(msgspec.json.encode(getattr(of_run, name)(*args, query)), request)

        response = await in_thread(reply)
        response.headers["cache-control"] = "no-store"
        return response

    def page(name: str) -> None:
        async def get(request: Request) -> Response:
            return await answer(request, name)

        about = getattr(explorer, name).__doc__
        router.add_api_route(
            f"/{name}", get, name=name, description=about, responses=refusals(404)
        )

    for name in EXPLORED:
        page(name)

    @router.get("/batches/{no}", responses=refusals(404))
    async def batch(no: int, request: Request) -> Response:
        return await answer(request, "batch", no)

    @router.get("/batches/{no}/certificate", responses=refusals(404))
    async def certificate(no: int, request: Request) -> Response:
        return await answer(request, "certificate", no)

    @router.get("/groups/{gid}", responses=refusals(404))
    async def group(gid: int, request: Request) -> Response:
        return await answer(request, "group", gid)

    @router.get("/groups/{gid}/rows/{row}", responses=refusals(404))
    async def row(gid: int, row: int, request: Request) -> Response:
        return await answer(request, "row", gid, row)

    @router.post("/steps/{step}/pin", responses=refusals())
    async def pin(step: int, kept: bool = True, run_id: str | None = None) -> Response:
        def reply() -> dict[str, int]:
            return explorer.of_run(run_id).pin(step, kept)

        return of_json(await in_thread(reply))

    return router
