"""HTTP of groups and rollouts: posts, admission, and the data routes of the original."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from atroposlib.api.codec import formats, read_group, read_groups
from atroposlib.api.codec.delivery import json_of
from atroposlib.api.codec.formats import ParsedGroup
from atroposlib.api.common.records import Accepted
from atroposlib.api.guards.auth import caller_of
from atroposlib.api.guards.body import TURN_KEY
from atroposlib.api.guards.busy import RETRY_AFTER_S
from atroposlib.api.run.posts import Post
from atroposlib.api.run.service import RolloutService
from atroposlib.api.web.openapi import (
    DROPPED_GROUP,
    MANY_GROUPS,
    ONE_GROUP,
    Full,
    group_responses,
    refusals,
)
from atroposlib.api.web.routes import (
    BytesRoute,
    JsonRoute,
    body_of,
    client_gone,
    of_json,
)
from atroposlib.api.web.streaming import DeliveryReply, in_windows, size_of
from atroposlib.errors import NotRegistered, StoreFull
from atroposlib.wire import (
    AdmissionRelease,
    AdmissionReply,
    AdmissionRequest,
    DropReport,
    GroupsReceived,
)

RUN_ID_HEADER = "x-atropos-run-id"
KEY_HEADER = "idempotency-key"
NO_EXAMPLE: dict[str, list[Any]] = {
    name: []
    for name in (
        "tokens",
        "masks",
        "scores",
        "advantages",
        "ref_logprobs",
        "generation_params",
        "inference_logprobs",
        "messages",
        "images",
    )
}


def data_routes(service: RolloutService, hold_s: float) -> APIRouter:
    """Routes of the queue for environments and trainers of the original."""
    router = APIRouter(tags=["data"], route_class=BytesRoute)
    _routes_in(router, service, hold_s)
    _routes_out(router, service)
    return router


async def accept_posted(
    service: RolloutService,
    request: Request,
    read: Callable[[formats.Body, str], list[ParsedGroup]],
    hold_s: float,
) -> list[Accepted]:
    body, kind = await body_of(request), request.headers.get("content-type", "")
    if formats.is_quick(body, kind):
        groups = read(body, kind)
    else:
        groups = await service.context.threads.parsing.run(read, body, kind)
    return await service.posts.accept(
        Post(
            groups,
            run_id=request.headers.get(RUN_ID_HEADER),
            caller=caller_of(request),
            is_disconnected=client_gone(request),
            hold_s=hold_s,
            on_hold=request.scope[TURN_KEY].give_back,
        )
    )


def _routes_in(router: APIRouter, service: RolloutService, hold_s: float) -> None:
    @router.post("/scored_data", openapi_extra=ONE_GROUP, responses=refusals(404, 409))
    async def scored_data(request: Request) -> Response:
        key = request.headers.get(KEY_HEADER)

        def read_one(body: formats.Body, kind: str) -> list[ParsedGroup]:
            return [read_group(body, kind, key)]

        [accepted] = await accept_posted(service, request, read_one, hold_s)
        reply: dict[str, Any] = {"status": "received"}
        if accepted.buffered:
            reply = {"status": "buffered", "buffer_size": accepted.buffer_size}
        if accepted.duplicate:
            reply["duplicate"] = True
        return of_json(reply)

    @router.post("/scored_data_list", openapi_extra=MANY_GROUPS, responses=refusals(404, 409))
    async def scored_data_list(request: Request) -> Response:
        accepted = await accept_posted(service, request, read_groups, hold_s)
        reply: dict[str, Any] = {"status": "received", "groups_processed": len(accepted)}
        if buffered := [group for group in accepted if group.buffered]:
            reply["buffered"] = len(buffered)
            reply["last_buffer_size"] = buffered[-1].buffer_size
        if duplicates := sum(group.duplicate for group in accepted):
            reply["duplicates"] = duplicates
        return of_json(reply)


def _routes_out(router: APIRouter, service: RolloutService) -> None:
    @router.get("/latest_example", responses=refusals())
    async def latest_example(request: Request) -> Response:
        latest = await service.posts.latest()
        if latest is None:
            return of_json(NO_EXAMPLE)
        pool = service.context.threads.windows
        # Written twice, so that its length is known: it is a single group, and seldom asked for.
        size = await pool.run(lambda: size_of(json_of(latest)))
        windows = in_windows(json_of(latest), pool)
        joined = (b"".join(window.pieces) async for window in windows)
        headers = {"content-length": str(size)}
        return StreamingResponse(joined, media_type="application/json", headers=headers)

    @router.get("/batch", responses=refusals(409) | group_responses())
    async def batch(request: Request) -> Response:
        legacy_batches = service.legacy_batches
        await request.body()  # only then is a disconnect of the client seen
        try:
            got = await legacy_batches.next_batch(client_gone(request))
        except NotRegistered as error:  # old clients read the body, not the code
            return of_json({"status": "error", "message": str(error), "batch": []})
        if got is None:
            return of_json({"batch": None})
        return DeliveryReply(
            service.store,
            got,
            service.context.threads.windows,
            accept=request.headers.get("accept", ""),
            on_end=partial(legacy_batches.end, got.batch),
            on_corrupt=partial(service.claims.discard, got.batch),
        )


def group_routes(service: RolloutService) -> APIRouter:
    """POST /groups, for environments that handle credits."""
    router = APIRouter(tags=["admission"], route_class=BytesRoute)

    @router.post(
        "/groups",
        openapi_extra=MANY_GROUPS,
        response_model=GroupsReceived,
        responses=refusals(404, 409) | {429: {"model": Full}},
    )
    async def groups(request: Request) -> Response:
        try:
            accepted = await accept_posted(service, request, read_groups, hold_s=0.0)
        except StoreFull as error:
            return await _full(service, error)
        return of_json(
            GroupsReceived(
                accepted=len(accepted),
                duplicates=sum(group.duplicate for group in accepted),
                buffered=sum(group.buffered for group in accepted),
                credit_bytes=await service.context.queue_stats.credit_bytes(),
                policy_version=service.run.policy_version,
            )
        )

    return router


def admission_routes(service: RolloutService) -> APIRouter:
    """Routes for the admission of rollouts, and POST /drops for groups that are not sent."""
    router = APIRouter(tags=["admission"], route_class=JsonRoute)

    @router.post("/admission", response_model=AdmissionReply, responses=refusals(404, 409))
    async def admit(body: AdmissionRequest, request: Request) -> Response:
        return of_json(await service.admit(body, caller_of(request)))

    @router.post("/lease", deprecated=True, responses=refusals(404, 409))
    async def lease(body: AdmissionRequest, request: Request) -> Response:
        reply = await service.admit(body, caller_of(request))
        return of_json(reply.model_dump() | {"lease_id": reply.admission_id})

    @router.post("/admission/release", responses=refusals())
    @router.post("/release", deprecated=True, responses=refusals())
    async def release(body: AdmissionRelease, request: Request) -> Response:
        existed = await service.admission.release(body.admission_id, caller_of(request))
        return of_json({"status": "released", "found": existed})

    @router.post("/drops", openapi_extra=DROPPED_GROUP, responses=refusals(404))
    async def drops(report: Annotated[DropReport, Query()], request: Request) -> Response:
        body, kind = await body_of(request), request.headers.get("content-type", "")
        sample = None
        if body:
            parsing = service.context.threads.parsing
            sample = await parsing.run(read_group, body, kind, None)
        kept = await service.report_drops(report, sample, caller_of(request))
        return of_json({"kept": kept})

    return router


async def _full(service: RolloutService, error: StoreFull) -> Response:
    service.metrics.refused.labels("store_full").inc()
    credit = await service.context.queue_stats.credit_bytes()
    response = of_json(Full(detail=str(error), status="store_full", credit_bytes=credit), 429)
    response.headers["retry-after"] = str(RETRY_AFTER_S)
    return response
