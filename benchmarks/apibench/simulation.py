"""Simulated environments and a trainer on an event loop, and records of their calls."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from apibench.calls import AsyncClient
from apibench.figures import percentile
from apibench.payloads import Shape, group

POLL_S = 0.1
STEP_S = 0.2
SETTLE_S = 2.0  # time for all to queue groups; shares are counted after it
BATCH = 256  # sequences
AHEAD = 3  # batches a greedy environment keeps queued
BACKLOG = 2  # own groups that a backlogged environment keeps queued
SHAPE = Shape(4, 64)
_FIRST_MARK = 1_000_000  # above every token id of a payload
_DRAINED = 3  # empty batches in a row
_ERRORS = (OSError, asyncio.IncompleteReadError)


class Pace(str, Enum):
    """When an environment posts."""

    BACKLOGGED = "backlogged"
    GREEDY = "greedy"
    SCALED = "scaled"


class _Item(msgspec.Struct):
    tokens: list[list[int]]
    env_id: int | None = None


class _Batch(msgspec.Struct):
    batch: list[_Item] | None


def weight_of(env: int) -> float:
    """Weight of an environment: 1, 2, 3, 4 in turn."""
    return 1.0 + env % 4


def share_error(taken: Mapping[int, int]) -> float:
    """Largest difference, in points, between asked and realised share of a weight.

    ``taken`` counts by weight. Example: {1: 10, 2: 20, 3: 30, 4: 40} -> 0.0.
    """
    total = sum(taken.values())
    if total == 0:
        return 100.0
    return max(abs(100 * taken.get(w, 0) / total - 10 * w) for w in (1, 2, 3, 4))


class Simulation:
    """A run and its records: groups accepted, groups taken, duration of every call."""

    def __init__(self, port: int, env_ids: Sequence[int], pace: Pace) -> None:
        self.port, self.env_ids, self.pace = port, env_ids, pace
        self.server_cpu_s = 0.0
        self.failures: Counter[str] = Counter()
        self._acked: set[int] = set()
        self._seen: Counter[int] = Counter()
        self._taken: Counter[int] = Counter()  # groups in the run, by weight
        self._calls_s: list[float] = []
        self._wall_s = 0.0
        self._left = 0
        self._marks = iter(range(_FIRST_MARK, 2**31 - 1))
        self._stop = asyncio.Event()
        text = json.dumps(group(SHAPE))
        first = json.dumps(json.loads(text)["tokens"][0][0])
        place = text.index(first)
        self._head, self._tail = text[:place], text[place + len(first) : -1]

    # --- what came out --------------------------------------------------------------

    @property
    def accepted(self) -> int:
        return len(self._acked)

    @property
    def lost(self) -> int:
        """Groups that were accepted, in no batch, and not in the queue at the end."""
        return len(self._acked - set(self._seen)) - self._left

    @property
    def doubled(self) -> int:
        return sum(count - 1 for count in self._seen.values())

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def share_error(self) -> float:
        return share_error(self._taken)

    @property
    def slowest_s(self) -> float:
        return max(self._calls_s)

    @property
    def p99_s(self) -> float:
        return percentile(self._calls_s, 0.99)

    @property
    def requests_s(self) -> float:
        return len(self._calls_s) / self._wall_s

    @property
    def cpu_per_request_ms(self) -> float:
        return 1e3 * self.server_cpu_s / len(self._calls_s)

    # --- the run --------------------------------------------------------------------

    async def run(self, seconds: float) -> None:
        """``seconds`` of load, then the queue is drained."""
        began = time.perf_counter()
        tasks = [asyncio.create_task(self._env(i)) for i in range(len(self.env_ids))]
        tasks.append(asyncio.create_task(self._trainer()))
        await asyncio.sleep(seconds)
        self._stop.set()
        await asyncio.gather(*tasks)
        self._wall_s = time.perf_counter() - began
        await self._drain()

    async def _env(self, place: int) -> None:
        client = AsyncClient(self.port)
        await asyncio.sleep(random.Random(place).random() * POLL_S)
        query = json.dumps({"env_id": self.env_ids[place]}).encode()
        tail = f'{self._tail}, "env_id": {self.env_ids[place]}}}'
        credit, due = 0.0, time.perf_counter()
        while not self._stop.is_set():
            status = await self._call(client, "GET", "/status-env", query)
            if status is not None:
                reply = json.loads(status)
                credit = min(2.0, credit + reply["env_weight"] * len(self.env_ids))
                if self._may_post(reply, credit):
                    credit -= 1.0
                    mark = next(self._marks)
                    body = f"{self._head}{mark}{tail}".encode()
                    if await self._call(client, "POST", "/scored_data", body) is not None:
                        self._acked.add(mark)
            due = max(due + POLL_S, time.perf_counter())
            await asyncio.sleep(due - time.perf_counter())
        client.close()

    def _may_post(self, told: Mapping[str, float], credit: float) -> bool:
        if self.pace is Pace.BACKLOGGED:
            return told["self_queue_size"] < BACKLOG
        if told["queue_size"] * SHAPE.rows >= AHEAD * BATCH:
            return False
        return self.pace is Pace.GREEDY or credit >= 1.0

    async def _trainer(self) -> None:
        client, settled = AsyncClient(self.port), time.perf_counter() + SETTLE_S
        while not self._stop.is_set():
            taken = await self._take(client)
            if time.perf_counter() > settled:
                self._taken.update(taken)
            await asyncio.sleep(STEP_S if taken else POLL_S)
        client.close()

    async def _take(self, client: AsyncClient) -> Counter[int]:
        """Groups of a batch by weight; empty if no batch is ready."""
        body = await self._call(client, "GET", "/batch")
        batch = None if body is None else msgspec.json.decode(body, type=_Batch).batch
        by_weight: Counter[int] = Counter()
        for item in batch or []:
            self._seen[item.tokens[0][0]] += 1
            if item.env_id is not None:
                by_weight[int(weight_of(self.env_ids.index(item.env_id)))] += 1
        return by_weight

    async def _drain(self) -> None:
        client = AsyncClient(self.port)
        empty = 0
        while empty < _DRAINED:
            empty = 0 if await self._take(client) else empty + 1
        status = await self._call(client, "GET", "/status")
        self._left = json.loads(status)["queue_size"] if status is not None else 0
        client.close()

    async def _call(
        self, client: AsyncClient, method: str, path: str, body: bytes = b""
    ) -> bytes | None:
        try:
            reply = await client.call(method, path, body)
        except _ERRORS as error:
            self.failures[f"{path} {type(error).__name__}"] += 1
            return None
        self._calls_s.append(reply.seconds)
        if reply.status != 200:
            self.failures[f"{path} {reply.status}"] += 1
            return None
        return bytes(reply.body)
