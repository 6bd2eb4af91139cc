"""Streamed batches: groups go from the store to the socket in small windows.

While a window of the body is sent the next is read in a thread, so two are in memory. A batch
of 130 MB does not block the event loop: chunks are small, and further tasks run after each.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from atroposlib.api.codec.delivery import (
    Encoding,
    accepted_encoding,
    encode_group,
    neighbours_within,
)
from atroposlib.api.common.pools import Pool
from atroposlib.api.common.records import Delivery
from atroposlib.api.store import Store
from atroposlib.api.web.errors_http import error_response
from atroposlib.api.web.routes import client_gone
from atroposlib.errors import CorruptPayload
from atroposlib.wire.binary import FRAME_HEAD_BYTES
from atroposlib.wire.safetensors import Bytes

# An ASGI extension; its "now" cuts the connection at once (``transport.abort``).
ABORT_EXTENSION = "atropos.abort"
RESET_EXTENSION = "atropos.reset"  # its "call" takes what to await after a reset
CHUNK_BYTES = 2 * 2**20  # copied, and written to the socket, in about a millisecond
WINDOW_BYTES = 2 * 2**20  # small groups are read together, a larger group alone
LAST_BYTES = 2**14  # held back until the client is looked at for the last time
AHEAD_BYTES = 2**20  # bytes of the body that are made ahead


class DeliveryReply(Response):
    """The members of a delivery, in the media type that ``accept`` names.

    JSON is ``head``, the groups joined by commas, ``tail``. Frames are
    ``application/x-atropos-groups``. Both carry ``X-Atropos-Batch`` and ``-Epoch``.

    A body of a single window names its length, and each body of frames without masked tokens.

    A damaged group aborts the connection before the body is complete (or is answered 503,
    if nothing was sent yet). So does a client that takes longer than ``send_timeout_s`` for
    a chunk. A client therefore never takes a part for the whole.

    Args:
        pool: reads the store.
        on_end: awaited at the end, with whether the last byte was sent to a connected client.
            Awaited again, with False, if the client resets the connection before its next
            request: it died before it had read all.
        on_corrupt: awaited when the store detected damaged groups.
    """

    def __init__(
        self,
        store: Store,
        delivery: Delivery,
        pool: Pool,
        *,
        accept: str,
        head: bytes = b'{"batch":[',
        tail: bytes = b"]}",
        on_end: Callable[[bool], Coroutine[Any, Any, None]],
        on_corrupt: Callable[[CorruptPayload], Awaitable[None]],
        send_timeout_s: float = 60.0,
    ) -> None:
        self._store, self._members, self._pool = store, delivery.members, pool
        self._form = accepted_encoding(accept)
        self._min_version = delivery.batch.min_version
        frames = self._form is Encoding.FRAMES
        self._head, self._tail = (b"", b"") if frames else (head, tail)
        self._on_end, self._on_corrupt = on_end, on_corrupt
        self._send_timeout_s = send_timeout_s
        batch = delivery.batch
        named = {"x-atropos-batch": str(batch.no), "x-atropos-epoch": str(batch.epoch)}
        super().__init__(media_type=self._form.value, headers=named | {"vary": "accept"})
        del self.headers["content-length"]
        if (length := self._length()) is not None:
            self.headers["content-length"] = str(length)

    def _length(self) -> int | None:
        """Size of the body in bytes, if it is known before it is written."""
        masked = any(member.is_older_than(self._min_version) for member in self._members)
        if self._form is Encoding.JSON or masked:
            return None
        return sum(FRAME_HEAD_BYTES + member.n_bytes for member in self._members)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = False
        try:
            sent = await self._send_all(scope, receive, send)
        finally:
            await self._on_end(sent)
        watch = scope.get("extensions", {}).get(RESET_EXTENSION)
        if sent and watch is not None:
            watch["call"](partial(self._on_end, False))

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Send the body; whether its last byte was handed over while the client was connected.

        A client has the whole body as soon as it has the last byte, and may close its connection
        at once. So the connection is not looked at again after that byte: from then on only a
        reset, reported by the server, means that the body was not read.

        A return before the last message makes the server close the connection.
        """
        gone = client_gone(Request(scope, receive))
        started = False
        try:
            if scope.get("http_version") == "1.0" and "content-length" not in self.headers:
                # A client of HTTP/1.0 knows no chunks; the body is made twice for it.
                size = await self._pool.run(lambda: size_of(self._pieces()))
                self.headers["content-length"] = str(size)
            async with aclosing(in_windows(self._pieces(), self._pool)) as windows:
                last = b""
                async for window in windows:
                    if not started:
                        if window.is_last:
                            self.headers["content-length"] = str(window.size)
                        await self._out(send, self._start())
                        started = True
                    for chunk in _chunks(window.pieces):
                        if await gone():
                            return False
                        await self._out(send, _body(last))
                        if len(chunk) > LAST_BYTES:  # waiting clients cost no more memory
                            await self._out(send, _body(chunk[:-LAST_BYTES]))
                        last = chunk[-LAST_BYTES:]
            # After this message the buffers of the connection have room, so that the last
            # message is written without a pause: the check is as of that instant.
            await self._out(send, _body(b""))
            if await gone():
                return False
            await self._out(send, _body(last, more=False))
            return True
        except CorruptPayload as error:
            if started:
                _abort(scope)
            await self._on_corrupt(error)
            if not started:
                await error_response(error)(scope, receive, send)
        except TimeoutError:
            _abort(scope)
        except OSError:  # raised by some servers when the client is gone
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

    def _pieces(self) -> Iterator[Bytes]:
        """The body. Blocking: reads the store, a window of groups at a time."""
        yield self._head
        sizes = [member.n_bytes for member in self._members]
        for start, end in neighbours_within(WINDOW_BYTES, sizes):
            window = self._members[start:end]
            payloads = self._store.read([member.gid for member in window]) if window else []
            for i, (member, payload) in enumerate(zip(window, payloads), start):
                if self._form is Encoding.JSON and i:
                    yield b","
                yield from encode_group(payload, member, self._form, self._min_version)
        yield self._tail


class Window(NamedTuple):
    """Neighbouring pieces of a body."""

    pieces: list[Bytes]
    size: int  # bytes
    is_last: bool


def size_of(pieces: Iterator[Bytes]) -> int:
    """Bytes of a body that is not kept. Blocking."""
    return sum(map(len, pieces))


async def in_windows(source: Iterator[Bytes], pool: Pool) -> AsyncGenerator[Window, None]:
    """The pieces of a blocking source; a window is read ahead."""
    ahead = _read_ahead(source, pool)
    try:
        while not (window := await ahead).is_last:
            ahead = _read_ahead(source, pool)
            yield window
        yield window
    finally:
        ahead.cancel()
        await asyncio.wait([ahead])


def _read_ahead(source: Iterator[Bytes], pool: Pool) -> asyncio.Task[Window]:
    task = asyncio.create_task(pool.run(_window, source))
    task.add_done_callback(_looked_at)
    return task


def _window(source: Iterator[Bytes]) -> Window:
    pieces, size = [], 0
    for piece in source:
        pieces.append(piece)
        size += len(piece)
        if size >= AHEAD_BYTES:
            return Window(pieces, size, is_last=False)
    return Window(pieces, size, is_last=True)


def _chunks(pieces: Sequence[Bytes]) -> Iterator[bytes]:
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


def _looked_at(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task that is no longer awaited, so that it is not logged."""
    if not task.cancelled():
        task.exception()


def _abort(scope: Scope) -> None:
    """Abort the connection, if the server supports it: closing would wait for the client."""
    extension = scope.get("extensions", {}).get(ABORT_EXTENSION)
    if extension is not None:
        extension["now"]()
