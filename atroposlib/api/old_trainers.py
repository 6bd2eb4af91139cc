"""GET /batch, for trainers that know neither claim nor ack.

They read one batch after another and tell nothing. So the next GET acks the batch before
if its reply went out whole, and gets the same batch again if it did not. Bytes in the
socket buffers of a client that died count as sent, and a kill between the last byte and
our note delivers once more: at least once, not exactly once. ``/batches/claim`` is exact.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atroposlib.api.concurrency import wait_at_most
from atroposlib.api.records import Batch, Delivery
from atroposlib.api.service import RolloutService
from atroposlib.errors import Fenced

LEASE_S = 600.0  # GET /batch names no lease
REPLY_PATIENCE_S = 2.0  # how long a GET waits to learn whether the one before got through
CHUNK_BYTES = 256 * 1024


class OldTrainers:
    """Serves GET /batch. One call at a time: these trainers are sequential."""

    def __init__(self, service: RolloutService) -> None:
        self._service = service
        self._turn = asyncio.Lock()
        self._settled: asyncio.Event | None = None  # of the last reply

    async def next_batch(self) -> Delivery | str:
        """Ack the batch before if it got through, and claim the next.

        A GET that comes before the fate of the last reply is known waits for it: a client
        with a new connection per call can be faster than our note that all went out.

        Raises:
            NotRegistered: no trainer has registered.
        """
        async with self._turn:
            if self._settled is not None:
                await wait_at_most(self._settled, REPLY_PATIENCE_S)
            run = self._service.run
            run.registration
            if run.sent is not None and run.sent.generation == run.generation:
                with suppress(Fenced):  # delivered again since then: the claim brings it
                    await self._service.ack(run.sent.no, run.generation, run.sent.epoch)
            got = await self._service.claim(run.generation, LEASE_S, wait_s=0.0)
            self._settled = None if isinstance(got, str) else asyncio.Event()
            return got

    def reply(self, batch: Batch, body: bytes, request: Request) -> Response:
        """A response that notes whether ``batch`` went out whole."""
        assert self._settled is not None
        return _NotedReply(self._service, batch, body, request, self._settled)


class _NotedReply(Response):
    media_type = "application/json"

    def __init__(
        self,
        service: RolloutService,
        batch: Batch,
        body: bytes,
        request: Request,
        settled: asyncio.Event,
    ) -> None:
        super().__init__(body)
        self._service = service
        self._batch = batch
        self._request = request
        self._settled = settled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            view = memoryview(self.body)
            for start in range(0, len(view), CHUNK_BYTES):
                chunk = bytes(view[start : start + CHUNK_BYTES])
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            # Servers drop what is sent to a closed connection without a word, so ask.
            gone = await self._request.is_disconnected()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            if not gone:
                await self._service.note_sent(self._batch)
        finally:
            self._settled.set()
