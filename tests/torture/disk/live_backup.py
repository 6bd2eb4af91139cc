"""Backups of a store under load: each restored copy is the queue at one point, exactly.

Threads post, claim, ack and commit; another process copies the directory meanwhile. All calls have
the times of their start and of their answer. A copy is the queue at one point if a moment exists
with every call answered before it inside and every call begun after it outside.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from atroposlib.api.common.records import Claim, NewGroup
from atroposlib.api.decisions.batching import choose, complete_buffer
from atroposlib.api.store.sql.ack import Ack, Commit
from atroposlib.api.store.sql.claim import ClaimBatch
from atroposlib.api.store.sql.run import LoadRun, SaveRun
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.api.store.sqlite.backup import restore
from atroposlib.errors import StaleGeneration
from tests.torture.figures import Figures, fast_folder, quantile

GROUPS = 5_000
POSTERS = 4
N_SEQ = 4
BATCH = 32  # sequences, eight groups
SEGMENT_BYTES = 200_000  # some hundred groups: segments are sealed, moved and freed
ARCHIVE_BYTES = 400_000
STOPS_BEHIND = 40  # groups queued at which the trainer waits


@dataclass
class Call:
    """Times (s, monotonic) of a call; ``answered`` is endless for a call without an answer."""

    begun: float
    answered: float = float("inf")


class Load:
    """Posters and a trainer on a store, each in its thread."""

    def __init__(self, store: SqliteStore, groups: int, seed: int) -> None:
        self._store, self._groups, self._seed = store, groups, seed
        first = SaveRun(b"{}", store.ask(LoadRun()).revision, fence=True)
        self._run = store.do(first)
        self.generation = self._run.generation
        self.posts: dict[str, Call] = {}
        self.acks: dict[int, Call] = {}
        self._posters = [
            threading.Thread(target=self._post, args=(number,)) for number in range(POSTERS)
        ]
        self._trainer = threading.Thread(target=self._train)
        self.failure: BaseException | None = None
        # A copy is made under load: the second half of the posts waits for its start, the last
        # posts for its end.
        self.copy_begun = threading.Event()
        self.copy_ended = threading.Event()

    def start(self) -> None:
        for thread in (*self._posters, self._trainer):
            thread.start()

    def join(self) -> None:
        for thread in (*self._posters, self._trainer):
            thread.join()
        if self.failure is not None:
            raise self.failure

    def wait_for(self, posts: int) -> None:
        while len(self.posts) < posts and self.failure is None:
            time.sleep(0.001)

    def _post(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        own = self._groups // POSTERS
        try:
            for i in range(own):
                if i == own // 2:
                    self.copy_begun.wait()
                if i == own - 10:
                    self.copy_ended.wait()
                key = f"{number}-{i}"
                group = NewGroup(rng.randbytes(rng.randrange(200, 4_000)), N_SEQ, key=key)
                call = self.posts[key] = Call(time.monotonic())
                self._store.put([group], self._run.revision, complete_buffer)
                call.answered = time.monotonic()
        except BaseException as error:
            self.failure = error

    def _train(self) -> None:
        try:
            while any(thread.is_alive() for thread in self._posters):
                trained_batch(self._store, self._run.generation, self.acks)
                while self._store.stats().groups_held < STOPS_BEHIND and any(
                    thread.is_alive() for thread in self._posters
                ):
                    time.sleep(0.001)
        except BaseException as error:
            self.failure = error


def trained_batch(store: SqliteStore, generation: int, acks: dict[int, Call]) -> list[int]:
    """Claim, read, ack and commit a batch; the ids of its groups, none without a batch."""
    claim = Claim(generation=generation, size=BATCH, now=0.0, lease_s=1e9)
    batch = store.do(ClaimBatch(claim, lambda q, share: choose(q, share, batch_size=BATCH)))
    if isinstance(batch, str):
        return []
    store.read(batch.gids)  # checks the digests
    call = acks[batch.no] = Call(time.monotonic())
    store.do(Ack(batch.no, batch.generation, batch.epoch, rank=None, commit=False))
    call.answered = time.monotonic()
    store.do(Commit(batch.no, batch.generation))
    return list(batch.gids)


def require_one_point(calls: dict[str, Call], inside: set[str]) -> None:
    """No call outside of the copy was answered before a call inside began."""
    last_begun = max((calls[name].begun for name in inside), default=0.0)
    outside = calls.keys() - inside
    first_answered = min((calls[name].answered for name in outside), default=float("inf"))
    assert last_begun <= first_answered, "the copy is no point in time"


def backup_campaign(groups: int, seed: int = 0) -> Figures:
    """Post ``groups`` in runs of at most ``GROUPS``, with a backup in each run."""
    size, backups = min(groups, GROUPS), -(-groups // GROUPS)
    figures = Figures({"backups": backups, "groups posted": 0, "lost": 0, "doubled": 0})
    held: list[float] = []
    seconds: list[float] = []
    for number in range(backups):
        with fast_folder() as folder:
            load_seed = seed * 1000 + number
            seconds.append(_back_up_under_load(folder, size, load_seed, figures, held))
    figures["groups in a copy p50"] = quantile(held, 0.5)
    figures["s a backup p50"] = quantile(seconds, 0.5)
    assert not figures["lost"] and not figures["doubled"], figures.line("backup")
    return figures


def _back_up_under_load(
    folder: Path, groups: int, seed: int, figures: Figures, held: list[float]
) -> float:
    store = SqliteStore(
        folder / "data", segment_bytes=SEGMENT_BYTES, archive_bytes=ARCHIVE_BYTES
    )
    with closing(store):
        load = Load(store, groups, seed)
        load.start()
        load.wait_for(random.Random(seed).randrange(groups // 10, groups // 2))
        command = [sys.executable, "-m", "atroposlib.cli.atropos", "api", "backup"]
        places = [str(folder / "data"), str(folder / "copy")]
        process = subprocess.Popen([*command, *places], stdout=subprocess.DEVNULL)
        try:
            while not (folder / "copy").exists() and process.poll() is None:
                time.sleep(0.001)
            begun = time.monotonic()
            load.copy_begun.set()
            assert process.wait() == 0, "atropos api backup failed"
            spent_s = time.monotonic() - begun
        finally:
            load.copy_begun.set()
            load.copy_ended.set()
            load.join()
    restore(folder / "copy", folder / "back")
    with closing(SqliteStore(folder / "back", archive_bytes=ARCHIVE_BYTES)) as copy:
        inside, doubled, lost = _checked_copy(copy, load)
    figures["groups posted"] += len(load.posts)
    figures["doubled"] += doubled
    figures["lost"] += lost
    held.append(inside)
    return spent_s


def _checked_copy(copy: SqliteStore, load: Load) -> tuple[int, int, int]:
    """Groups of a restored copy; groups trained twice; groups neither trained nor queued."""
    rows = copy.ask(lambda c: c.execute("SELECT key, gid, state, batch_no FROM groups"))
    acked = {no for _, _, state, no in rows if state in ("acked", "committed")}
    calls = {f"post {key}": call for key, call in load.posts.items()}
    calls |= {f"ack {no}": call for no, call in load.acks.items()}
    inside = {f"post {key}" for key, _, _, _ in rows} | {f"ack {no}" for no in acked}
    assert len({key for key, _, _, _ in rows}) == len(rows)
    require_one_point(calls, inside)
    before = copy.ask(LoadRun())
    try:  # the trainer of the original
        trained_batch(copy, load.generation, {})
        raise AssertionError("a trainer of the original trained on the copy")
    except StaleGeneration:
        pass
    generation = copy.do(SaveRun(b"{}", before.revision, fence=True)).generation
    trained = Counter(gid for _, gid, state, _ in rows if state in ("acked", "committed"))
    while gids := trained_batch(copy, generation, {}):
        trained.update(gids)
    left = copy.ask(lambda c: c.execute("SELECT gid FROM groups WHERE state = 'pending'"))
    over = set(trained) | {gid for (gid,) in left}
    assert copy.read([gid for (gid,) in left]) is not None
    doubled = sum(count - 1 for count in trained.values())
    return len(rows), doubled, len({gid for _, gid, _, _ in rows} - over)
