"""Posts and batches at once, in the long run: tokens per second through the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from apibench import servers
from apibench.calls import TIMEOUT_S, Client, Refused
from apibench.figures import Better, Figure, Section, times
from apibench.payloads import Body, Encoding, pool
from apibench.processes import warm_page_cache
from apibench.sizes import BIG, Plan

POSTERS = 4
GROUPS_PER_BATCH = 16
AHEAD = 3  # batches posted and not yet taken, at most
_POLL_S = 0.005
_METHOD = (
    f"{POSTERS} clients post groups of {BIG} tokens, at most {AHEAD} batches ahead of a "
    f"trainer that takes batches of {GROUPS_PER_BATCH} groups and throws them away. Ours is "
    "durable. The clients share the machine with the server, so the figure is what both "
    "together can do. In the binary rows naive is still sent JSON."
)


@dataclass(frozen=True)
class _Rate:
    tokens_s: float
    cpu_s: float  # CPU of the server per million tokens


def run(plan: Plan) -> Section:
    rates: dict[str, list[_Rate]] = {"JSON": [], "binary": [], "naive": []}
    ours = servers.ours(source=plan.source)
    count, naive_count = plan.sustained_batches, plan.naive_sustained_batches
    for repeat in range(plan.repeats):
        rates["JSON"].append(_measure(plan, ours, Encoding.JSON, False, count))
        rates["binary"].append(_measure(plan, ours, Encoding.BINARY, True, count))
        if repeat < plan.naive_batch_repeats:
            naive = _measure(plan, servers.NAIVE, Encoding.JSON, False, naive_count)
            rates["naive"].append(naive)
    figures = []
    for way, target in (("JSON", times(20)), ("binary", times(70))):
        figures.append(
            Figure(
                what=f"posts and batches, {way}",
                unit="Mtok/s",
                ours=tuple(rate.tokens_s / 1e6 for rate in rates[way]),
                naive=tuple(rate.tokens_s / 1e6 for rate in rates["naive"]),
                better=Better.MORE,
                target=target,
            )
        )
        figures.append(
            Figure(
                what=f"posts and batches, {way}",
                unit="CPU s/Mtok",
                ours=tuple(rate.cpu_s for rate in rates[way]),
                naive=tuple(rate.cpu_s for rate in rates["naive"]),
            )
        )
    return Section("Posts and batches, sustained", _METHOD, tuple(figures))


def _measure(
    plan: Plan, kind: servers.Kind, encoding: Encoding, frames: bool, batches: int
) -> _Rate:
    bodies = pool(4, BIG, encoding)
    with servers.Server(kind, plan.scratch) as server:
        server.begin(GROUPS_PER_BATCH * BIG.rows, [servers.env(BIG.rows)])
        flow = _Flow(server.port, bodies, batches, server.generation, frames)
        warm_page_cache(plan.scratch)
        cpu, began = server.usage().cpu_s, time.perf_counter()
        flow.run()
        wall, cpu = time.perf_counter() - began, server.usage().cpu_s - cpu
    tokens = batches * GROUPS_PER_BATCH * BIG.tokens
    return _Rate(tokens / wall, cpu / (tokens / 1e6))


class _Flow:
    """Posters and a trainer, each a thread; the first failure ends all."""

    def __init__(
        self, port: int, bodies: list[Body], batches: int, generation: int, frames: bool
    ) -> None:
        self.port, self.bodies, self.batches = port, bodies, batches
        self.generation, self.frames = generation, frames
        self.room = threading.Semaphore(GROUPS_PER_BATCH * AHEAD)
        self.turns = iter(range(batches * GROUPS_PER_BATCH))
        self.lock = threading.Lock()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Run until all batches were taken.

        Raises:
            Refused: a post or a batch was refused.
        """
        work = [self._trainer, *[self._poster] * POSTERS]
        threads = [threading.Thread(target=self._keep_failure, args=(job,)) for job in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        if self.failure is not None:
            raise Refused(str(self.failure))

    def _keep_failure(self, work: Callable[[Client], None]) -> None:
        client = Client(self.port)
        try:
            work(client)
        except (Refused, OSError) as error:
            self.failure = error
        finally:
            client.close()

    def _poster(self, client: Client) -> None:
        while self.failure is None:
            with self.lock:
                turn = next(self.turns, None)
            if turn is None or not self.room.acquire(timeout=TIMEOUT_S):
                return
            client.send("/scored_data", self.bodies[turn % len(self.bodies)])

    def _trainer(self, client: Client) -> None:
        room = bytearray(GROUPS_PER_BATCH * BIG.tokens * 40)
        taken = 0
        while taken < self.batches and self.failure is None:
            if not self._take(client, room):
                time.sleep(_POLL_S)
                continue
            taken += 1
            for _ in range(GROUPS_PER_BATCH):
                self.room.release()

    def _take(self, client: Client, room: bytearray) -> bool:
        """Take a batch, if one is ready: the old way in JSON, claim and ack in binary."""
        if not self.frames:
            return len(client.call("GET", "/batch", room=room).ok().body) > 1000
        reply = client.claim(room, generation=self.generation, wait_s=1.0)
        if "x-atropos-batch" not in reply.headers:
            return False
        epoch = int(reply.headers["x-atropos-epoch"])
        path = f"/batches/{reply.headers['x-atropos-batch']}/ack"
        client.post(path, {"generation": self.generation, "epoch": epoch})
        return True
