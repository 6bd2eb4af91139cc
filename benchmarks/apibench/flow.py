"""Posters and a trainer at once, against a server that is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from apibench.calls import TIMEOUT_S, Client, Refused
from apibench.payloads import Body

POSTERS = 4
_POLL_S = 0.005


@dataclass
class Flow:
    """Posters and a trainer, each a thread; the first failure ends all."""

    port: int
    bodies: Sequence[Body]  # posted in turn
    batches: int
    generation: int
    frames: bool  # claim and ack in binary; False: the old way in JSON
    groups_per_batch: int
    groups_ahead: int  # groups posted and not yet taken, at most
    room_bytes: int  # a batch's
    sent_bytes: int = 0
    taken_bytes: int = 0
    post_s: list[float] = field(default_factory=list)  # each post's
    failure: Exception | None = None

    def run(self) -> None:
        """Run until all batches were taken.

        Raises:
            Refused: a post or a batch was refused.
        """
        self._room = threading.Semaphore(self.groups_ahead)
        self._turns = iter(range(self.batches * self.groups_per_batch))
        self._lock = threading.Lock()
        work = [self._trainer, *[self._poster] * POSTERS]
        threads = [threading.Thread(target=self._keep_failure, args=(job,)) for job in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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
            with self._lock:
                turn = next(self._turns, None)
            if turn is None or not self._room.acquire(timeout=TIMEOUT_S):
                return
            body = self.bodies[turn % len(self.bodies)]
            reply = client.send("/scored_data", body)
            with self._lock:
                self.sent_bytes += len(body.data)
                self.post_s.append(reply.seconds)

    def _trainer(self, client: Client) -> None:
        room = bytearray(self.room_bytes)
        taken = 0
        while taken < self.batches and self.failure is None:
            if not self._take(client, room):
                time.sleep(_POLL_S)
                continue
            taken += 1
            for _ in range(self.groups_per_batch):
                self._room.release()

    def _take(self, client: Client, room: bytearray) -> bool:
        """Take a batch; False if no batch is ready."""
        if not self.frames:
            body = client.call("GET", "/batch", room=room).ok().body
            self.taken_bytes += len(body)
            return len(body) > 1000
        reply = client.claim(room, generation=self.generation, wait_s=1.0)
        if "x-atropos-batch" not in reply.headers:
            return False
        self.taken_bytes += len(reply.body)
        epoch = int(reply.headers["x-atropos-epoch"])
        path = f"/batches/{reply.headers['x-atropos-batch']}/ack"
        client.post(path, {"generation": self.generation, "epoch": epoch})
        return True
