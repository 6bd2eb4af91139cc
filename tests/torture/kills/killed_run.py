"""kill -9 of the API, again and again, below a trainer that crashes too.

Six clients post groups under keys and repeat each until it is acknowledged. The trainer
keeps what it trained on in memory, and a copy of that as its checkpoint; when it crashes
it goes on from the copy, registers and rewinds. In the end every acknowledged group must
be trained on exactly once, or still be queued; and on SQLite its bytes are still there, in
the queue or in the archive.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.wire.binary import unpack_group
from tests.postgres_server import PostgresServer, running_server
from tests.torture.figures import Figures, fast_folder, quantile
from tests.torture.kills.api_process import LOST, SMALL_SEGMENTS, ApiProcess, Caller

CLIENTS = 6
BATCH = 16
LIVES_S = (0.05, 0.5)  # how long the API lives between being ready and being killed
MOST_AHEAD = 600  # groups a client may be ahead of the trainer

REGISTRATION = {
    **{"wandb_group": "", "wandb_project": "", "batch_size": BATCH, "max_token_len": 64},
    **{"checkpoint_dir": "", "save_checkpoint_interval": 1, "starting_step": 0},
    **{"num_steps": 1_000_000, "commits": True},
}


def group(lane: int, i: int) -> dict[str, object]:
    """Its tokens and its size follow from its key, so that wrong bytes show."""
    rows = (1, 2, 4)[(lane + i) % 3]
    return {
        "tokens": [[lane, i, row] for row in range(rows)],
        "masks": [[-100, -100, row] for row in range(rows)],
        "scores": [float(row) for row in range(rows)],
        "idempotency_key": f"{lane}/{i}",
    }


class Client(threading.Thread):
    """Posts one group after another, each until it is acknowledged."""

    def __init__(self, lane: int, ports: Sequence[int], stop: threading.Event) -> None:
        super().__init__(name=f"client {lane}", daemon=True)
        self.lane, self.acknowledged, self.repeated = lane, 0, 0
        self.refused: list[str] = []
        self.may_run_ahead = threading.Event()
        self._ports, self._end = ports, stop
        self._rng = random.Random(lane)

    def run(self) -> None:
        caller = Caller(*self._ports)
        while not self._end.is_set() and not self.refused:
            if self.may_run_ahead.wait(0.1):
                self._post(caller, group(self.lane, self.acknowledged))
        caller.close()

    def _post(self, caller: Caller, body: dict[str, object]) -> None:
        many = self._rng.random() < 0.3
        while True:
            try:
                if self._rng.random() < 0.02:
                    caller.hang_up_on("POST", "/scored_data", body)
                    self.repeated += 1
                path = "/groups" if many else "/scored_data"
                status, reply = caller.call("POST", path, [body] if many else body)
            except LOST:
                self.repeated += 1
                self._end.wait(0.02)
                continue
            if status == 200:
                self.acknowledged += 1
                return
            if status < 500 and status != 429:
                self.refused.append(f"{self.name}: {status} {reply}")
                return
            self._end.wait(0.02)


class CrashingTrainer(threading.Thread):
    """Trains on batches in order. ``trained`` is its memory, ``checkpoint`` outlives it."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        super().__init__(name="trainer", daemon=True)
        self.trained: list[tuple[int, list[str]]] = []
        self.checkpoint: list[tuple[int, list[str]]] = []
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.registered = threading.Event()  # once; before that no group is welcome
        self.finishing, self.finished = threading.Event(), threading.Event()
        self._rng = random.Random(seed)
        self._ports, self._claims = ports, 0
        self._generation: int | None = None

    def run(self) -> None:
        caller = Caller(*self._ports)
        while not self.finished.is_set() and not self.broken:
            try:
                self._step(caller)
            except LOST:
                self.finished.wait(0.02)
        caller.close()

    def _step(self, caller: Caller) -> None:
        if self._generation is None:
            self._restart(caller)
            return
        claim_id = f"claim {self._claims}"
        # The last look waits: another replica sees what was just posted a moment later.
        wish = {"generation": self._generation, "claim_id": claim_id, "lease_s": 600}
        wish["wait_s"] = 2.0 if self.finishing.is_set() else 0.0
        if not self.finishing.is_set() and self._rng.random() < 0.03:
            caller.hang_up_on("POST", "/batches/claim", wish)
            return  # the same claim_id follows
        status, reply = caller.call("POST", "/batches/claim", wish)
        if not self._usable("claim", status, reply):
            return
        self._claims += 1
        if reply["batch_no"] is None:
            if self.finishing.is_set():
                self._save(caller)
                self.finished.set()
            self.finished.wait(0.01)
            return
        self._train(reply)
        self._acknowledge(caller, reply)
        if self._generation is not None and not self.finishing.is_set():
            self._perhaps_crash_or_save(caller)

    def _restart(self, caller: Caller) -> None:
        self.trained = list(self.checkpoint)
        self.counts["trainer starts"] += 1
        status, reply = caller.call("POST", "/register", REGISTRATION)
        if status != 200:
            self._usable("register", status, reply)
            return
        generation = reply["generation"]
        last = self.trained[-1][0] if self.trained else 0
        status, reply = caller.call(
            "POST", f"/batches/{last}/rewind", {"generation": generation}
        )
        if self._usable("rewind", status, reply):
            self.counts["batches replayed"] += reply["replayed"]
            self._generation = generation
            self.registered.set()

    def _train(self, reply: dict[str, object]) -> None:
        no = reply["batch_no"]
        assert isinstance(no, int)
        if any(no == seen for seen, _ in self.trained[-50:]):
            self.counts["batches delivered again"] += 1
            return
        keys = []
        for one in reply["batch"]:  # type: ignore[attr-defined]
            key = one["idempotency_key"]
            lane, i = map(int, key.split("/"))
            wanted = group(lane, i)
            if any(one[name] != value for name, value in wanted.items()):
                self.broken.append(f"batch {no}: {key} came back as {one}")
            keys.append(key)
        self.trained.append((no, keys))

    def _acknowledge(self, caller: Caller, reply: dict[str, object]) -> None:
        receipt = {"generation": self._generation, "epoch": reply["epoch"]}
        if self._rng.random() < 0.05:
            return  # the ack is lost: the lease ends with the next start of the trainer
        self._usable("ack", *caller.call("POST", f"/batches/{reply['batch_no']}/ack", receipt))

    def _perhaps_crash_or_save(self, caller: Caller) -> None:
        chance = self._rng.random()
        if chance < 0.05:
            self._generation = None
        elif chance < 0.25:
            self._save(caller)

    def _save(self, caller: Caller) -> None:
        self.checkpoint = list(self.trained)
        if self.trained:
            no = self.trained[-1][0]
            status, reply = caller.call(
                "POST", f"/batches/{no}/commit", {"generation": self._generation}
            )
            self._usable("commit", status, reply)

    def _usable(self, what: str, status: int, reply: object) -> bool:
        if status == 409:
            # A claim that was hung up on may be served after the one that repeats it; the
            # later delivery then has no owner. Start again from the checkpoint.
            self._generation = None
            self.counts["fenced"] += 1
        elif status != 200 and status < 500:
            self.broken.append(f"{what}: {status} {reply}")
        return status == 200


def audit(
    clients: list[Client], trainer: CrashingTrainer, queued: int
) -> tuple[Figures, set[str]]:
    """Compare the acknowledged groups with those trained on and those still queued.

    Returns the figures, and the keys of the acknowledged groups.
    """
    acknowledged = {
        f"{c.lane}/{i}": (c.lane, i) for c in clients for i in range(c.acknowledged)
    }
    trained = Counter(key for _, keys in trainer.trained for key in keys)
    left = [where for key, where in acknowledged.items() if key not in trained]
    sequences_left = sum(len(group(*where)["scores"]) for where in left)  # type: ignore[arg-type]
    figures = Figures()
    figures["groups acknowledged"] = len(acknowledged)
    figures["sequences lost"] = sequences_left - queued
    figures["trained twice"] = sum(n - 1 for n in trained.values())
    figures["ghosts"] = len(trained.keys() - acknowledged.keys())
    figures["groups trained"] = len(trained)
    figures["posts repeated"] = sum(c.repeated for c in clients)
    figures.update(trainer.counts)
    return figures, set(acknowledged)


def kill_campaign(cycles: int, seed: int = 0) -> Figures:
    """Raises AssertionError at the first broken promise; otherwise the figures."""
    with fast_folder() as folder:
        api = ApiProcess(folder, prelude=SMALL_SEGMENTS)
        figures, acknowledged = _campaign([api], [api], cycles, random.Random(seed))
        figures["neither queued nor archived"] = len(acknowledged - _kept(folder / "data"))
    assert figures["neither queued nor archived"] == 0, figures.line("kills")
    return figures


def _kept(data_dir: Path) -> set[str]:
    """Keys of all groups whose payloads the log has, each compared with what was posted."""
    keys = set()
    with closing(SqliteStore(data_dir, archive_bytes=2**40)) as store:
        gids = store.kept_gids(0, 10**9)
        for start in range(0, len(gids), 256):
            for payload in store.read(gids[start : start + 256], retired=True):
                kept = msgspec.to_builtins(unpack_group(payload))
                lane, i = map(int, kept["idempotency_key"].split("/"))
                assert group(lane, i).items() <= kept.items(), kept
                keys.add(kept["idempotency_key"])
    return keys


def replica_campaign(cycles: int, seed: int = 0) -> Figures:
    """As above, with two replicas over one PostgreSQL; each kill takes one of the three."""
    with fast_folder() as folder, running_server() as database:
        apis = []
        for name in ("one", "other"):
            (folder / name).mkdir()
            apis.append(ApiProcess(folder / name, "--store", database.url()))
        return _campaign(apis, [*apis, database], cycles, random.Random(seed))[0]


def _campaign(
    apis: Sequence[ApiProcess],
    victims: Sequence[ApiProcess | PostgresServer],
    cycles: int,
    rng: random.Random,
) -> tuple[Figures, set[str]]:
    """The figures, and the keys of the acknowledged groups."""
    stop, ports = threading.Event(), [api.port for api in apis]
    clients = [
        Client(lane, ports[lane % len(ports) :] + ports[: lane % len(ports)], stop)
        for lane in range(CLIENTS)
    ]
    trainer = CrashingTrainer(ports, rng.randrange(2**32))
    ready_s = []
    for api in apis:
        api.start()
    try:
        trainer.start()
        assert trainer.registered.wait(600), trainer.broken
        for client in clients:
            client.start()
        for _ in range(cycles):
            _live(clients, trainer, rng.uniform(*LIVES_S))
            victim = rng.choice(victims)
            victim.kill()
            begun = time.monotonic()
            victim.start()
            ready_s.append(time.monotonic() - begun)
        for client in clients:
            client.may_run_ahead.set()
        stop.set()
        for client in clients:
            client.join(600)
            assert not client.is_alive(), f"{client.name} waits for a reply"
        trainer.finishing.set()
        trainer.join(600)
        assert not trainer.is_alive(), "the trainer did not drain"
        with closing(Caller(*ports)) as caller:
            status, reply = caller.call("GET", "/status")
        assert status == 200, reply
        figures, acknowledged = audit(clients, trainer, reply["queued_sequences"])
    finally:
        stop.set()
        trainer.finished.set()
        for api in apis:
            api.kill()
    wrong = [*trainer.broken, *(words for client in clients for words in client.refused)]
    assert wrong == [], wrong
    figures["s to ready p50"] = quantile(ready_s, 0.5)
    figures["s to ready p99"] = quantile(ready_s, 0.99)
    for name in ("sequences lost", "trained twice", "ghosts"):
        assert figures[name] == 0, f"{figures.line('kills')}; {reply}"
    return Figures({"cycles": cycles, **figures}), acknowledged


def _live(clients: list[Client], trainer: CrashingTrainer, seconds: float) -> None:
    """Let all of them work; clients far ahead of the trainer pause."""
    assert trainer.is_alive() and not trainer.broken, trainer.broken
    trained = sum(len(keys) for _, keys in trainer.trained)
    ahead = sum(client.acknowledged for client in clients) - trained
    for client in clients:
        (client.may_run_ahead.set if ahead < MOST_AHEAD else client.may_run_ahead.clear)()
    time.sleep(seconds)
