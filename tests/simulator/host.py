"""The machine of the API: one life of the process after another, over one disk.

A power cut comes at a planned write of the store (``tests.torture.disk.lossy_disk``). From
then on no answer leaves, the tasks of that life end, and the next life opens what was kept.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import apsw
import httpx
from fastapi.dependencies import models as dependencies

from atroposlib.api.common.pools import Threads
from atroposlib.api.decisions.blocked import is_full
from atroposlib.api.decisions.exact_fill import minima_of, minimum_sequences
from atroposlib.api.server import create_app
from atroposlib.api.store import Store
from atroposlib.api.store.memory import MemoryStore
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.api.web.routes import GONE_EXTENSION
from atroposlib.errors import StoreError
from tests.simulator.loop import Later, LaterWriter
from tests.torture.disk.lossy_disk import Disk, LossySegments, LossyVfs
from tests.torture.web.asgi_caller import Reply, Request, scope_of

EPOCH_S = 1.7e9  # the wall clock at the start
SEGMENT_BYTES = 4_000  # of some ten groups
WHO: ContextVar[str] = ContextVar("who", default="api")  # the machine that runs the code
_LIFE: ContextVar[Life | None] = ContextVar("life", default=None)


@dataclass
class Exchange:
    """A request on its way, and its client's end of the connection."""

    asked: Request
    pauses_s: list[float]  # between the pieces of the body
    reply: Reply = field(default_factory=Reply)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False  # the client hung up

    def hang_up(self) -> None:
        self.gone = True
        self.over.set()


class Life:
    """One process of the API."""

    def __init__(self, store: Store, clock: Callable[[], float], rng: random.Random) -> None:
        self.store, self.ended = store, False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.app = create_app(store, clock, threads=Threads(lambda most: Later(rng)))
        self.service = self.app.state.service
        self.service.context.indexer.close()  # its thread never starts

    def end(self) -> None:
        self.ended = True
        for task in list(self.tasks):
            task.cancel()
        with suppress(StoreError, apsw.Error, OSError):
            self.store.close()


class ApiHost:
    """Serves requests while the process lives."""

    def __init__(
        self, folder: Path | None, rng: random.Random, max_bytes: int, max_deliveries: int = 8
    ) -> None:
        self._time = asyncio.get_running_loop().time
        self._folder, self._rng, self._max_bytes = folder, rng, max_bytes
        self._disk = None if folder is None else Disk(folder / "0")
        self._vfs = LossyVfs(f"simulated-{id(self)}", self._disk) if self._disk else None
        self._lives = 0
        self.clocks: dict[str, int] = {}  # seconds by which the clock of a machine is off
        self.life: Life | None = None

    @property
    def up(self) -> bool:
        return self.life is not None and not self.life.ended

    def clock(self) -> float:
        """The wall clock of the machine that runs the calling code."""
        return EPOCH_S + self._time() + self.clocks.get(WHO.get(), 0)

    def start(self) -> None:
        """Begin a life; raises StoreError if the power goes meanwhile."""
        asyncio.get_running_loop().set_task_factory(_counted)
        self.life = Life(self._opened(), self.clock, self._rng)

    def _opened(self) -> Store:
        def writer(database: Any) -> LaterWriter:
            return LaterWriter(database, self._rng, self._look_at_power)

        if self._disk is None or self._vfs is None:
            return MemoryStore(self._max_bytes, writer)
        return SqliteStore(
            self._disk.folder,
            max_bytes=self._max_bytes,
            segment_bytes=SEGMENT_BYTES,
            vfs=self._vfs.name,
            files=LossySegments(self._disk),
            writer=writer,
        )

    def cut_power_after(self, steps: int) -> None:
        """Plan a power cut at a write or sync of the store."""
        if self._disk is not None and self.up:
            self._disk.steps_left = steps

    def _look_at_power(self) -> None:
        if self._disk is not None and not self._disk.has_power and self.life is not None:
            self.life.ended = True  # at once: no answer leaves
            asyncio.get_running_loop().call_soon(self._die)

    def _die(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            life.end()

    def restart(self) -> None:
        """The next life, on what the disk kept; nothing if the process lives."""
        if self.up or self._disk is None or self._vfs is None or self._folder is None:
            return
        self._die()
        self._lives += 1
        self._disk = self._disk.after_cut(self._folder / str(self._lives), self._rng)
        self._vfs.disk = self._disk
        self.start()

    def close(self) -> None:
        self._die()
        for one in vars(dependencies).values():  # caches by route hold the app of each life
            if isinstance(one, _lru_cache_wrapper):
                one.cache_clear()
        if self._vfs is not None:
            self._vfs.unregister()

    def rows(self) -> dict[str, tuple[str, int, int]]:
        """State, environment and sequences of each group in the store, by its key."""
        assert self.life is not None
        sql = "SELECT key, state, env, n_seq FROM groups"
        found = self.life.store.ask(lambda c: c.execute(sql))
        return {key: (state, env, n_seq) for key, state, env, n_seq in found}

    @property
    def needs(self) -> dict[int, int]:
        """The least sequences of each environment in a batch now."""
        assert self.life is not None
        context = self.life.service.context
        return minimum_sequences(
            minima_of(context.live()), context.run.registration.batch_size
        )

    @property
    def full(self) -> bool:
        """Whether a batch may miss the minima, by ``is_full``."""
        store = self.life.store if self.up and self.life else None
        return store is not None and is_full(store.stats(), store.max_bytes)

    def serve(self, exchange: Exchange) -> asyncio.Task[Reply]:
        """The reply of the present life; ReadError if it ends first."""
        assert self.life is not None
        _LIFE.set(self.life)
        caller = WHO.set("api")
        try:
            return asyncio.ensure_future(_served(self.life, exchange))
        finally:
            WHO.reset(caller)
            _LIFE.set(None)


def _counted(loop: Any, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
    """Tasks of a life, started by its requests, end with it."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
    if (life := _LIFE.get()) is not None:
        life.tasks.add(task)
        task.add_done_callback(life.tasks.discard)
    return task


async def _served(life: Life, exchange: Exchange) -> Reply:
    asked, reply, whole = exchange.asked, exchange.reply, False
    step = max(1, -(-len(asked.body) // (len(exchange.pauses_s) + 1)))
    pieces = [asked.body[i : i + step] for i in range(0, len(asked.body), step)] or [b""]
    pieces.reverse()

    async def receive() -> dict[str, Any]:
        if pieces:
            piece = pieces.pop()
            if not pieces and exchange.pauses_s:
                await asyncio.sleep(sum(exchange.pauses_s))
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
        await exchange.over.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal whole
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            reply.body += message.get("body", b"")
            if not message.get("more_body"):
                whole = True
                exchange.over.set()

    scope = scope_of(asked)
    scope["extensions"] = {GONE_EXTENSION: {"now": lambda: exchange.gone}}
    with suppress(asyncio.CancelledError):  # the life ended
        await life.app(scope, receive, send)
    if life.ended:
        raise httpx.ReadError("server disconnected")
    if not whole:
        raise httpx.ReadError("server closed the connection")
    return reply
