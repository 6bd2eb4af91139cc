"""HTTP of the batches: claim, ack, extend, commit, rewind, and shards for ranks."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atroposlib import wire
from atroposlib.api.codec import formats
from atroposlib.api.common.records import Delivery
from atroposlib.api.run.service import RolloutService
from atroposlib.api.store.sql.ack import dead_batches
from atroposlib.api.web.openapi import NOTES, group_responses, refusals
from atroposlib.api.web.routes import JsonRoute, body_of, client_gone, of_json
from atroposlib.api.web.streaming import DeliveryReply


def batch_routes(service: RolloutService) -> APIRouter:
    """Routes of trainers that claim and ack."""
    router = APIRouter(prefix="/batches", tags=["batches"], route_class=JsonRoute)

    @router.post("/claim", responses=refusals(409) | group_responses("ClaimedBatch"))
    async def claim(body: wire.ClaimRequest, request: Request) -> Response:
        got = await service.claims.claim(body, client_gone(request))
        if isinstance(got, str):
            empty = {"batch_no": None, "epoch": None, "batch": None, "blocked_reason": got}
            return of_json(empty)
        return _reply(service, got, request, named=body.claim_id is not None)

    @router.get(
        "/{no}/shards/{rank}", responses=refusals(409) | group_responses("ClaimedBatch")
    )
    async def shard(
        no: int, rank: int, generation: int, epoch: int, request: Request
    ) -> Response:
        got = await service.claims.shard_of(no, generation, epoch, rank)
        return _reply(service, got, request, named=True)

    @router.post("/{no}/ack", responses=refusals(409))
    async def ack(no: int, body: wire.AckRequest) -> Response:
        first = await service.claims.ack(no, body.generation, body.epoch, body.rank)
        return of_json({"status": "acked", "first": first})

    @router.post("/{no}/notes", openapi_extra=NOTES, responses=refusals(409))
    async def notes(
        no: int, generation: int, epoch: int, request: Request, rank: int | None = None
    ) -> Response:
        body = bytes(formats.whole_body(await body_of(request)))
        noted = await service.claims.note(no, generation, epoch, rank, body)
        return of_json({"noted": noted})

    @router.post("/{no}/extend", responses=refusals(409))
    async def extend(no: int, body: wire.ExtendRequest) -> Response:
        await service.claims.extend(no, body.generation, body.epoch, body.lease_s)
        return of_json({"status": "extended"})

    @router.post("/{no}/commit", response_model=wire.Committed, responses=refusals(409))
    async def commit(no: int, body: wire.CheckpointRequest) -> Response:
        result = await service.claims.commit(no, body.generation)
        return of_json(
            wire.Committed(committed=result.committed, left_open=list(result.left_open))
        )

    @router.post("/{no}/rewind", response_model=wire.Rewound, responses=refusals(409))
    async def rewind(no: int, body: wire.CheckpointRequest) -> Response:
        rewound = await service.claims.rewind(no, body.generation, body.rewind_id)
        return of_json(wire.Rewound(replayed=rewound.replayed, gone=rewound.gone))

    @router.get("/dead", responses=refusals())
    async def dead() -> Response:
        batches = await service.context.threads.reads.run(service.store.ask, dead_batches)
        return of_json({"batches": batches})

    @router.post("/{no}/revive", responses=refusals())
    async def revive(no: int) -> Response:
        return of_json({"found": await service.claims.settle_dead(no, revive=True)})

    @router.post("/{no}/drop", responses=refusals())
    async def drop(no: int) -> Response:
        return of_json({"found": await service.claims.settle_dead(no, revive=False)})

    return router


def _reply(
    service: RolloutService, delivery: Delivery, request: Request, *, named: bool
) -> DeliveryReply:
    """The groups of a claim. A reply that was not delivered ends the lease of its batch.

    Unless the claim has a name: then its repetition returns the batch anyway.
    """
    batch = delivery.batch

    async def end(sent: bool) -> None:
        if not sent and not named:
            await service.claims.give_up(batch)

    return DeliveryReply(
        service.store,
        delivery,
        service.context.threads.windows,
        accept=request.headers.get("accept", ""),
        head=f'{{"batch_no":{batch.no},"epoch":{batch.epoch},"batch":['.encode(),
        tail=b'],"blocked_reason":null}',
        on_end=end,
        on_corrupt=partial(service.claims.discard, batch),
    )
