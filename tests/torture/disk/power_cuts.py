"""Power cuts at any write or sync, one after another, and an audit after each.

A walk does random things to a store on a lossy disk until the power goes; the disk then
loses what it may, the store is opened again, and must hold all that was acknowledged.
Only of the call that the cut interrupted may the effect be there or not.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import count
from pathlib import Path

import apsw

from atroposlib.api.common.records import NewGroup
from atroposlib.api.decisions.batching import complete_buffer
from atroposlib.api.decisions.staleness import StalenessRule
from atroposlib.api.store.sqlite import RESERVE_BYTES, SqliteStore
from atroposlib.api.store.sqlite.payload_log import SEGMENT_BYTES
from atroposlib.errors import ConfigError, CorruptPayload, StoreError
from tests.torture.disk.lossy_disk import Disk, LossySegments, LossyVfs
from tests.torture.figures import Figures, fast_folder
from tests.torture.queue.queue_actions import MAX_BYTES, SIZES, Actions, Draft
from tests.torture.queue.queue_duel import Wish
from tests.torture.queue.queue_model import Model

LIVES = 12  # cuts in a row on one disk, at most
MOST_STEPS = (80, 80, 600)  # writes and syncs that a life lasts, at most
FAILED = (StoreError, apsw.Error)


def draft(rng: random.Random) -> Draft:
    expected = rng.choice([None, None, None, 4])
    return Draft(
        n_seq=rng.choice((1, 2, 2, 4)) if expected is None else rng.choice((1, 2, 3)),
        env=rng.choice((None, 0, 1)) if expected is None else 0,
        age=rng.choice((0, 1, 3)),
        expected=expected,
        n_bytes=rng.choice((10, 20, 60)),
    )


def anything(actions: Actions, rng: random.Random) -> Callable[[], object]:
    """One of the things that can happen, with its numbers chosen."""
    trainer, i = actions.trainer, rng.randrange(64)
    size, acks, lost = rng.choice(SIZES), rng.randrange(4), rng.random() < 0.2
    drafts = [draft(rng) for _ in range(rng.randrange(1, 5))]
    wish = Wish(rule=StalenessRule(rng.choice(("keep", "drop")), rng.choice((None, 1))))
    often: list[Callable[[], object]] = [
        lambda: actions.put(drafts),
        lambda: actions.claim(rng.choice((1.0, 10.0)), lost=lost),
        lambda: trainer.train(acks),
        actions.a_checkpoint_says_it,  # payloads retire, and segments with them
    ]
    seldom: list[Callable[[], object]] = [
        lambda: actions.retry(i, drafts[0]),
        lambda: actions.change_run(),
        lambda: trainer.save_checkpoint(also_commit=not lost),
        lambda: trainer.start(size, commits=not lost),
        lambda: actions.discard(i, i),
        lambda: actions.act_on_any(i, "extend"),
        lambda: actions.tick(5.0),
        lambda: actions.want(wish),
        lambda: actions.new_policy(),
        lambda: actions.admit(i % 3, 4, 10, 100.0),
        lambda: actions.release(i % 3),
    ]
    return rng.choice(often if rng.random() < 0.6 else seldom)


class Walk:
    """One disk and what happens on it. Each cut leaves it in a new folder."""

    def __init__(self, vfs: LossyVfs, folder: Path, rng: random.Random, setting: str) -> None:
        self._vfs, self._folder, self._rng, self._setting = vfs, folder, rng, setting
        self.cuts = 0
        # Segments of few payloads, often with less free space than one of them has.
        self._segment_bytes = rng.choice((20, 40, 80, SEGMENT_BYTES))
        spare = rng.choice((0, 10**9))
        self._free_bytes = lambda folder: RESERVE_BYTES + 300 + spare
        self._archive_bytes = rng.choice((0, 200, 2**40))  # none, the newest, all
        self._posted: dict[bytes, tuple[NewGroup, int | None]] = {}  # by many at once
        vfs.disk = Disk(folder / "0")
        self.actions = Actions(self._opened())
        self.actions.duel.archived = self._archive_bytes == 2**40 and spare > 0

    @property
    def disk(self) -> Disk:
        return self._vfs.disk

    def _opened(self) -> SqliteStore:
        return SqliteStore(
            self.disk.folder,
            max_bytes=MAX_BYTES,
            free_bytes=self._free_bytes,
            segment_bytes=self._segment_bytes,
            archive_bytes=self._archive_bytes,
            vfs=self._vfs.name,
            files=LossySegments(self.disk),
            synchronous=self._setting,
        )

    def live_and_die(self) -> None:
        """Raises AssertionError if a promise is broken."""
        rng = self._rng
        self.disk.steps_left = rng.randrange(1, rng.choice(MOST_STEPS))
        while True:
            act = self._many_at_once if rng.random() < 0.1 else anything(self.actions, rng)
            try:
                act()
            except FAILED:
                break
        self._cut()
        while rng.random() < 0.2:  # the power goes again while the store is being opened
            self.disk.steps_left = rng.randrange(1, 6)
            try:
                self.actions.duel.store = self._opened()
            except FAILED:
                self._cut()
            else:
                break
        else:
            self.actions.duel.store = self._opened()
        self.disk.steps_left = None
        self.actions.duel.require_same_files()
        self._learn_what_landed()
        self._audit()
        self._resume()

    def _many_at_once(self) -> None:
        """Posts from many threads share a transaction; each is answered for itself."""
        groups = [self.actions.made(draft(self._rng)) for _ in range(8)]
        revision = self.actions.duel.model.run.revision

        def post(group: NewGroup) -> int | None:
            try:
                return self.actions.duel.store.put([group], revision, complete_buffer)[0].gid
            except StoreError:  # no power, or full
                return None

        with ThreadPoolExecutor(len(groups)) as pool:
            answers = list(pool.map(post, groups))
        self._posted = dict(zip((group.payload for group in groups), zip(groups, answers)))
        if not self.disk.has_power:
            raise StoreError("no power")
        self._learn_what_landed()

    def _learn_what_landed(self) -> None:
        """The store decides in which order the threads came, and all that was
        acknowledged must be among what is there."""
        duel = self.actions.duel
        while self._posted:
            gid = duel.model.last_gid + 1
            try:
                [payload] = duel.store.read([gid])
            except CorruptPayload:
                break
            group, answer = self._posted.pop(payload)
            assert answer in (None, gid), f"answered {answer}, but it is {gid}"
            duel.model.put([group], duel.model.run.revision, complete_buffer, [gid])
        lost = [gid for _, gid in self._posted.values() if gid is not None]
        assert not lost, f"groups {lost} were acknowledged and are gone"
        self._posted = {}

    def _cut(self) -> None:
        self.cuts += 1
        assert not self.disk.has_power, "the store failed with the power on"
        self.actions.duel.store.close()
        self._vfs.disk = self.disk.after_cut(self._folder / str(self.cuts), self._rng)

    def _audit(self) -> None:
        duel = self.actions.duel
        before, in_flight = duel.model, duel.in_flight
        after = deepcopy(before)
        if in_flight is not None:
            in_flight(after)
            duel.in_flight = None
        if not self._holds(after):
            duel.model = before
            duel.require_same_books(self.actions.now)
            duel.require_every_group_where_it_belongs()

    def _holds(self, model: Model) -> bool:
        duel = self.actions.duel
        duel.model = model
        try:
            duel.require_same_books(self.actions.now)
            duel.require_every_group_where_it_belongs()
        except (AssertionError, StoreError):
            return False
        return True

    def _resume(self) -> None:
        """What the cut left open in ways no caller can see (the end of a lease, one rank of
        several) ends with the next generation of the trainer."""
        self.actions.trainer.start(self.actions.trainer.size, self.actions.trainer.commits)

    def end(self) -> None:
        self.actions.duel.store.close()


def power_cut_campaign(cuts: int, setting: str = "FULL", seed: int = 0) -> Figures:
    """Counts the walks in which a promise was broken; with FULL the first one ends it."""
    rng, done, broken, first = random.Random(seed), 0, 0, ""
    lives = count()
    with fast_folder() as folder:
        vfs = LossyVfs(f"lossy-{setting}-{seed}", Disk(folder / "first"))
        while done < cuts and not (broken and setting == "FULL"):
            place = folder / str(next(lives))
            walk = Walk(vfs, place, rng, setting)
            try:
                while walk.cuts < LIVES and done + walk.cuts < cuts:
                    walk.live_and_die()
            except (AssertionError, ConfigError, *FAILED) as error:
                broken += 1
                first = first or f"{type(error).__name__}: {error}"
            done += walk.cuts
            walk.end()
            shutil.rmtree(place)
        vfs.unregister()
    figures = Figures({"cuts": done, "disks": next(lives), "with a broken promise": broken})
    assert not (broken and setting == "FULL"), f"{figures.line('power cuts')}: {first}"
    return figures
