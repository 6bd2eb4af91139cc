"""HTTP of new environments: groups with credit, and admission of rollouts."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atroposlib.api.codec import read_groups
from atroposlib.api.guards.auth import caller_of
from atroposlib.api.run.service import RolloutService
from atroposlib.api.web.openapi import MANY_GROUPS, Full, refusals
from atroposlib.api.web.requests import ControlRoute, RawRoute, body_of
from atroposlib.api.web.responses import RETRY_AFTER_S, of_json
from atroposlib.api.web.routes_groups import post_of, read_where
from atroposlib.errors import StoreFull
from atroposlib.wire import AdmissionRelease, AdmissionReply, AdmissionRequest, GroupsReceived


def group_routes(service: RolloutService) -> APIRouter:
    """Groups of environments that understand credits."""
    router = APIRouter(tags=["admission"], route_class=RawRoute)

    @router.post(
        "/groups",
        openapi_extra=MANY_GROUPS,
        response_model=GroupsReceived,
        responses=refusals(404, 409) | {429: {"model": Full}},
    )
    async def groups(request: Request) -> Response:
        body, kind = await body_of(request), request.headers.get("content-type", "")
        incoming = await read_where(service, body, kind, partial(read_groups, body, kind))
        try:
            accepted = await service.posts.accept(post_of(request, incoming, hold_s=0.0))
        except StoreFull as error:
            return await _full(service, error)
        return of_json(
            GroupsReceived(
                accepted=len(accepted),
                duplicates=sum(one.duplicate for one in accepted),
                buffered=sum(one.buffered for one in accepted),
                credit_bytes=await service.posts.credit_bytes(),
                policy_version=service.run.policy_version,
            )
        )

    return router


def admission_routes(service: RolloutService) -> APIRouter:
    """Routes of environments that pace themselves."""
    router = APIRouter(tags=["admission"], route_class=ControlRoute)

    @router.post("/admission", response_model=AdmissionReply, responses=refusals(404, 409))
    async def admit(body: AdmissionRequest, request: Request) -> Response:
        return of_json(await service.admit(body, caller_of(request)))

    @router.post("/lease", deprecated=True, responses=refusals(404, 409))
    async def lease(body: AdmissionRequest, request: Request) -> Response:
        reply = await service.admit(body, caller_of(request))
        return of_json(reply.model_dump() | {"lease_id": reply.admission_id})

    @router.post("/admission/release", responses=refusals())
    @router.post("/release", deprecated=True, responses=refusals())
    async def release(body: AdmissionRelease) -> Response:
        found = await service.admission.release(body.admission_id)
        return of_json({"status": "released", "found": found})

    return router


async def _full(service: RolloutService, error: StoreFull) -> Response:
    service.metrics.refused("store_full")
    credit = await service.posts.credit_bytes()
    response = of_json(Full(detail=str(error), status="store_full", credit_bytes=credit), 429)
    response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response
