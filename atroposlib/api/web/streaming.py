"""Batches out: a few groups at a time from the store to the socket, never joined whole.

While one window of groups goes out the next is read in a thread, so two are in memory. A
batch of 130 MB leaves the event loop free: chunks are small, and after each it turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from atroposlib.api.codec.formats import (
    Encoding,
    accepted_encoding,
    encode_group,
    is_stale,
    is_stored_as,
)
from atroposlib.api.common.records import BatchMember, Delivery
from atroposlib.api.common.store_protocol import Store
from atroposlib.api.web.bodies import on_error
from atroposlib.errors import CorruptPayload
from atroposlib.wire.binary import frame_head

# An ASGI extension; its "now" cuts the connection at once (``transport.abort``).
ABORT_EXTENSION = "atropos.abort"
CHUNK_BYTES = 256 * 2**10
WINDOW_BYTES = 2 * 2**20  # small groups are read together; a larger one alone


class DeliveryReply(Response):
    """The members of a delivery, in the form that ``accept`` names.

    JSON is ``head``, the groups joined by commas, ``tail``. Frames are
    ``application/x-atropos-groups``. Both carry ``X-Atropos-Batch`` and ``-Epoch``.

    A damaged group ends the connection before the body is complete (or is answered 503,
    if nothing was sent yet), and so does a client that takes longer than
    ``send_timeout_s`` for one chunk: a client never takes a part for the whole.

    Args:
        on_sent: awaited when the last byte went out and the client was still there.
        on_corrupt: awaited when the store found groups damaged.
        finished: set however the sending ends, after the others.
    """

    def __init__(
        self,
        store: Store,
        delivery: Delivery,
        *,
        accept: str,
        head: bytes = b'{"batch":[',
        tail: bytes = b"]}",
        on_sent: Callable[[], Awaitable[None]] | None = None,
        on_corrupt: Callable[[CorruptPayload], Awaitable[None]],
        send_timeout_s: float = 60.0,
        finished: asyncio.Event | None = None,
    ) -> None:
        self._store, self._delivery, self._form = store, delivery, accepted_encoding(accept)
        frames = self._form is Encoding.FRAMES
        self._head, self._tail = (b"", b"") if frames else (head, tail)
        self._on_sent, self._on_corrupt, self._finished = on_sent, on_corrupt, finished
        self._send_timeout_s = send_timeout_s
        batch = delivery.batch
        named = {"x-atropos-batch": str(batch.no), "x-atropos-epoch": str(batch.epoch)}
        super().__init__(media_type=self._form.value, headers=named | {"vary": "accept"})
        del self.headers["content-length"]
        if (length := self._length()) is not None:
            self.headers["content-length"] = str(length)

    def _length(self) -> int | None:
        """Bytes of the body, if they are known before it is written."""
        members = self._delivery.members
        for one in members:
            if not is_stored_as(one.media, self._form) or is_stale(one, self._min_version):
                return None
        between = (
            8 * len(members) if self._form is Encoding.FRAMES else max(len(members) - 1, 0)
        )
        stored = sum(one.n_bytes for one in members)
        return len(self._head) + stored + between + len(self._tail)

    @property
    def _min_version(self) -> int | None:
        return self._delivery.batch.min_version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        gone.add_done_callback(_looked_at)
        try:
            if await self._sent(scope, receive, send, gone) and self._on_sent is not None:
                await self._on_sent()
        finally:
            gone.cancel()
            if self._finished is not None:
                self._finished.set()

    async def _sent(
        self, scope: Scope, receive: Receive, send: Send, gone: asyncio.Task[None]
    ) -> bool:
        """Whether all of it went out to a client that was there. A return before the last
        message makes the server close the connection."""
        started = False
        try:
            async with aclosing(self._windows()) as windows:
                async for pieces in windows:
                    if not started:
                        await self._out(send, self._start())
                        started = True
                    for chunk in _chunks(pieces):
                        if gone.done():
                            return False
                        await self._out(send, _body(chunk))
                        await asyncio.sleep(0)
            # What is sent to a closed connection is dropped without a word, so ask, when
            # the buffers below have let go of all but the last kilobytes.
            await self._out(send, _body(b""))
            await asyncio.sleep(0)
            if gone.done():
                return False
            await self._out(send, _body(b"", more=False))
            return True
        except CorruptPayload as error:
            if started:
                _abort(scope)
            await self._on_corrupt(error)
            if not started:
                await (await on_error(None, error))(scope, receive, send)
        except TimeoutError:
            _abort(scope)
        except OSError:  # what a server may raise when the client is gone
            pass
        return False

    def _start(self) -> Message:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }

    async def _out(self, send: Send, message: Message) -> None:
        with anyio.fail_after(self._send_timeout_s):
            await send(message)

    async def _windows(self) -> AsyncGenerator[list[bytes], None]:
        """The body, as lists of pieces; while one is used the next is being read."""
        windows = list(_windows_of(self._delivery.members))
        ahead: asyncio.Task[list[bytes]] | None = None
        try:
            for i in range(len(windows)):
                pieces = await (ahead or self._read_ahead(windows, i))
                ahead = self._read_ahead(windows, i + 1) if i + 1 < len(windows) else None
                yield pieces
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.wait([ahead])

    def _read_ahead(
        self, windows: Sequence[Sequence[BatchMember]], i: int
    ) -> asyncio.Task[list[bytes]]:
        task = asyncio.create_task(
            run_sync(self._read, windows[i], i == 0, i + 1 == len(windows))
        )
        task.add_done_callback(_looked_at)
        return task

    def _read(self, window: Sequence[BatchMember], first: bool, last: bool) -> list[bytes]:
        pieces = [self._head] if first else []
        payloads = self._store.read([one.gid for one in window]) if window else []
        for i, (member, payload) in enumerate(zip(window, payloads)):
            data = encode_group(payload, member, self._form, self._min_version)
            if self._form is Encoding.FRAMES:
                pieces.append(frame_head(len(data)))
            elif i or not first:
                pieces.append(b",")
            pieces.append(data)
        return [*pieces, self._tail] if last else pieces


def _windows_of(members: Sequence[BatchMember]) -> Iterator[Sequence[BatchMember]]:
    """Neighbours that are small together; at least one window, though it be empty."""
    start, size = 0, 0
    for i, member in enumerate(members):
        if i > start and size + member.n_bytes > WINDOW_BYTES:
            yield members[start:i]
            start, size = i, 0
        size += member.n_bytes
    yield members[start:]


def _chunks(pieces: Sequence[bytes]) -> Iterator[bytes]:
    held: list[memoryview] = []
    size = 0
    for piece in pieces:
        view = memoryview(piece)
        while len(view):
            held.append(view[: CHUNK_BYTES - size])
            size += len(held[-1])
            view = view[len(held[-1]) :]
            if size == CHUNK_BYTES:
                yield b"".join(held)
                held, size = [], 0
    if held:
        yield b"".join(held)


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _gone(receive: Receive) -> None:
    """Ends when the client hung up, or when the reply is complete."""
    while (await receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Of a task that nobody awaits any more an error is not news."""
    if not task.cancelled():
        task.exception()


def _abort(scope: Scope) -> None:
    """Cut the connection, where the server lets us: closing it would wait for the client."""
    extension = scope.get("extensions", {}).get(ABORT_EXTENSION)
    if extension is not None:
        extension["now"]()
