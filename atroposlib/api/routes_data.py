"""HTTP of the data: scored groups in, batches out."""

from __future__ import annotations

from typing import Any

import msgspec
from anyio.to_thread import run_sync as in_thread
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atroposlib.api.intake import read_group, read_groups
from atroposlib.api.old_trainers import OldTrainers
from atroposlib.api.records import Delivery
from atroposlib.api.replies import joined, of_bytes, of_json
from atroposlib.api.service import RolloutService
from atroposlib.errors import NotRegistered
from atroposlib.wire import AckRequest, ClaimRequest

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


def data_routes(service: RolloutService) -> APIRouter:
    """Routes of the queue."""
    router = APIRouter()
    _routes_in(router, service)
    _routes_out(router, service)
    return router


def _routes_in(router: APIRouter, service: RolloutService) -> None:
    @router.post("/scored_data")
    async def scored_data(request: Request) -> Response:
        key = request.headers.get(KEY_HEADER)
        incoming = await in_thread(read_group, await request.body(), key)
        [accepted] = await service.accept([incoming], request.headers.get(RUN_ID_HEADER))
        reply: dict[str, Any] = {"status": "received"}
        if accepted.buffered:
            reply = {"status": "buffered", "buffer_size": accepted.buffer_size}
        if accepted.duplicate:
            reply["duplicate"] = True
        return of_json(reply)

    @router.post("/scored_data_list")
    async def scored_data_list(request: Request) -> Response:
        incoming = await in_thread(read_groups, await request.body())
        accepted = await service.accept(incoming, request.headers.get(RUN_ID_HEADER))
        reply: dict[str, Any] = {"status": "received", "groups_processed": len(accepted)}
        if buffered := [one for one in accepted if one.buffered]:
            reply["buffered"] = len(buffered)
            reply["last_buffer_size"] = buffered[-1].buffer_size
        if duplicates := sum(one.duplicate for one in accepted):
            reply["duplicates"] = duplicates
        return of_json(reply)

    @router.get("/latest_example")
    async def latest_example(request: Request) -> Response:
        if service.latest is None:
            return of_json(NO_EXAMPLE)
        return await in_thread(of_bytes, service.latest, request)


def _routes_out(router: APIRouter, service: RolloutService) -> None:
    old_trainers = OldTrainers(service)

    @router.get("/batch")
    async def batch(request: Request) -> Response:
        try:
            got = await old_trainers.next_batch()
        except NotRegistered as error:  # old clients read the body, not the code
            return of_json({"status": "error", "message": str(error), "batch": []})
        if isinstance(got, str):
            return of_json({"batch": None})
        body = await in_thread(lambda: b'{"batch":' + joined(got.payloads) + b"}")
        await request.body()  # what comes after it tells whether the client is still there
        return old_trainers.reply(got.batch, body, request)

    @router.post("/batches/claim")
    async def claim(body: ClaimRequest, request: Request) -> Response:
        got = await service.claim(body.generation, body.lease_s, body.wait_s)
        return await in_thread(lambda: of_bytes(_claimed(got), request))

    @router.post("/batches/{no}/ack")
    async def ack(no: int, body: AckRequest) -> Response:
        first = await service.ack(no, body.generation, body.epoch)
        return of_json({"status": "acked", "first": first})


def _claimed(got: Delivery | str) -> bytes:
    """A :class:`atroposlib.wire.ClaimedBatch`, written around the stored bytes."""
    if isinstance(got, str):
        empty = {"batch_no": None, "epoch": None, "batch": None, "blocked_reason": got}
        return msgspec.json.encode(empty)
    head = f'{{"batch_no":{got.batch.no},"epoch":{got.batch.epoch},"batch":'.encode()
    return head + joined(got.payloads) + b',"blocked_reason":null}'
