"""Any sequence of calls, crashes and clock ticks, drawn by Hypothesis, for any store."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from atroposlib.api.decisions.staleness import StalenessRule
from atroposlib.api.store import Store
from atroposlib.api.store.memory import MemoryStore
from atroposlib.api.store.sql import run
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from tests.postgres_server import PostgresServer
from tests.torture.queue.queue_actions import MAX_BYTES, SIZES, Actions, Draft
from tests.torture.queue.queue_duel import Wish

SEGMENT_BYTES = 60  # a few payloads
INDEX = st.integers(0, 63)  # taken modulo the number of things there are
ENVS = st.sampled_from([None, 0, 1])
DRAFT = st.builds(
    Draft,
    n_seq=st.sampled_from([1, 2, 2, 3, 4, 4, 8]),
    env=ENVS,
    age=st.sampled_from([0, 0, 1, 3, None]),
    keyed=st.sampled_from([True, True, True, False]),
    n_bytes=st.sampled_from([1, 20, 20, 60]),
)
BUFFERED = st.builds(
    Draft,
    n_seq=st.sampled_from([1, 1, 2, 3]),
    env=st.sampled_from([0, 1]),
    expected=st.sampled_from([2, 4, 4, 6]),
)
WISH = st.builds(
    Wish,
    needs=st.sampled_from([{}, {}, {0: 2}, {0: 1, 1: 3}]),
    weights=st.sampled_from([{}, {0: 1.0, 1: 3.0}, {0: 0.0, None: 2.0}]),
    rule=st.builds(
        StalenessRule,
        policy=st.sampled_from(["keep", "mask", "drop", "drop"]),
        max_staleness=st.sampled_from([None, 0, 1, 2]),
    ),
)


class QueueMachine(RuleBasedStateMachine):
    """Subclasses set which store it is, and what a crash of it looks like."""

    counted = Counter[str]()  # over all examples, for the line of figures

    def __init__(self) -> None:
        super().__init__()
        self.actions = Actions(self.open())
        self.counted["examples"] += 1

    def open(self) -> Store:
        return MemoryStore(max_bytes=MAX_BYTES)

    @rule(drafts=st.lists(DRAFT, min_size=1, max_size=4))
    def put(self, drafts: list[Draft]) -> None:
        self.actions.put(drafts)

    @rule(draft=DRAFT)
    def put_a_few_alike(self, draft: Draft) -> None:
        self.actions.put([draft] * 3)

    @rule(drafts=st.lists(BUFFERED, min_size=1, max_size=3))
    def put_parts_of_groups(self, drafts: list[Draft]) -> None:
        self.actions.put(drafts)

    @rule(i=INDEX, with_new=st.one_of(st.none(), DRAFT))
    def retry(self, i: int, with_new: Draft | None) -> None:
        self.actions.retry(i, with_new)

    @rule(i=INDEX)
    def reuse_a_key(self, i: int) -> None:
        self.actions.reuse_a_key(i)

    @rule(late_post=st.booleans())
    def change_run(self, late_post: bool) -> None:
        self.actions.change_run()
        if late_post:
            self.actions.put_after_a_change_of_the_run()

    @rule(i=INDEX, fate=st.sampled_from(["lost", "lost", "elsewhere", "confirmed", "unknown"]))
    def repeat_without_key(self, i: int, fate: str) -> None:
        self.actions.repeat_without_key(i, fate)

    @rule(size=st.sampled_from(SIZES), commits=st.sampled_from([True, True, False]))
    def trainer_starts(self, size: int, commits: bool) -> None:
        self.actions.trainer.start(size, commits)

    @rule(
        lease_s=st.sampled_from([1.0, 10.0]),
        world_size=st.sampled_from([1, 1, 2, 3]),
        lost=st.sampled_from([False, False, True]),
        most=st.sampled_from([20, 20, 2]),
    )
    def claim(self, lease_s: float, world_size: int, lost: bool, most: int) -> None:
        self.actions.claim(lease_s, world_size, lost=lost, most=most)

    @rule(acks=st.integers(0, 3))
    def train(self, acks: int) -> None:
        self.actions.trainer.train(acks)

    @rule(acks=st.integers(1, 3), lease_s=st.sampled_from([1.0, 10.0]))
    def claim_and_train(self, acks: int, lease_s: float) -> None:
        self.actions.claim(lease_s)
        self.actions.trainer.train(acks)

    @rule(
        what=st.sampled_from(
            [
                "zombie",
                "long step",
                "lost ack",
                "lost claim",
                "checkpoint",
                "diverges",
                "poison",
            ]
        ),
        world_size=st.sampled_from([1, 2, 3]),
    )
    def something_goes_wrong(self, what: str, world_size: int) -> None:
        if what == "zombie":
            self.actions.a_zombie_acks()
        elif what == "long step":
            self.actions.a_long_step()
        elif what == "lost claim":
            self.actions.a_claim_without_a_name_is_lost()
        elif what == "checkpoint":
            self.actions.a_checkpoint_says_it()
        elif what == "poison":
            self.actions.a_batch_kills_trainers()
        elif what == "diverges":
            self.actions.it_diverges()
        else:
            self.actions.an_ack_is_lost(world_size)

    @rule(what=st.sampled_from(["save", "save and commit", "commit", "roll back"]))
    def checkpoint(self, what: str) -> None:
        if what == "commit":
            self.actions.trainer.commit()
        elif what == "roll back":
            self.actions.trainer.roll_back()
        else:
            self.actions.trainer.save_checkpoint(also_commit=what == "save and commit")

    @rule(i=INDEX, verb=st.sampled_from(["ack", "ack", "ack as nobody", "extend", "lookup"]))
    def use_an_old_handle(self, i: int, verb: str) -> None:
        self.actions.act_on_any(i, verb)
        self.actions.claim_as_a_zombie()
        self.actions.repeat_an_answered_claim(i)

    @rule(i=INDEX, which=INDEX)
    def discard(self, i: int, which: int) -> None:
        self.actions.discard(i, which)

    @rule(i=INDEX, revive=st.booleans())
    def settle_dead(self, i: int, revive: bool) -> None:
        self.actions.settle_dead(i, revive)

    @rule(live=st.sampled_from([[], [0], [1], [0, 1, 7]]))
    def environments_leave(self, live: list[int]) -> None:
        self.actions.duel.free_absent(live)

    @rule(
        i=st.integers(0, 2),
        n_seq=st.sampled_from([1, 8]),
        room=st.sampled_from([-5, 3, 20]),
        ttl_s=st.sampled_from([1.0, 9.0]),
        release=st.booleans(),
    )
    def admit(self, i: int, n_seq: int, room: int, ttl_s: float, release: bool) -> None:
        self.actions.admit(i, n_seq, room, ttl_s)
        if release:
            self.actions.release((i + 1) % 3)

    @rule(seconds=st.sampled_from([0.5, 5.0, 50.0]))
    def tick(self, seconds: float) -> None:
        self.actions.tick(seconds)

    @rule(wish=WISH)
    def other_wishes(self, wish: Wish) -> None:
        self.actions.new_policy()
        self.actions.want(wish)

    @rule(sure=st.integers(0, 3))
    def reset(self, sure: int) -> None:
        if sure == 3:  # seldom, or nothing ever gets old
            self.actions.reset()

    @invariant()
    def the_books_agree(self) -> None:
        self.counted["states"] += 1
        self.actions.duel.require_same_books(self.actions.now)

    def teardown(self) -> None:
        self.actions.duel.require_every_group_where_it_belongs()
        self.close()

    def close(self) -> None:
        self.actions.duel.store.close()


class SqliteMachine(QueueMachine):
    """A crash is a copy of the files as they lie, opened as if after a kill."""

    place: Path  # set by campaign()

    def open(self) -> Store:
        self.folder = Path(tempfile.mkdtemp(dir=self.place))
        self.lives = 0
        return self.store_in(self.folder / "0")

    @staticmethod
    def store_in(folder: Path) -> Store:
        return SqliteStore(folder, max_bytes=MAX_BYTES, segment_bytes=SEGMENT_BYTES)

    @rule()
    def crash(self) -> None:
        self.counted["crashes"] += 1
        before = self.folder / str(self.lives)
        self.lives += 1
        after = self.folder / str(self.lives)
        after.mkdir()
        for file in [*before.glob(f"{DATABASE}*"), *before.glob("payload-*.log")]:
            if not file.name.endswith("-shm"):
                shutil.copy(file, after / file.name)
        self.actions.duel.store.close()
        self.actions.duel.store = self.store_in(after)
        self.actions.duel.require_same_files()
        self.actions.duel.require_every_group_where_it_belongs()

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.folder)


class PostgresMachine(QueueMachine):
    """A crash is the end of every session, from the server's side."""

    server: PostgresServer  # both set by the caller
    shared_store: Store

    def open(self) -> Store:
        # A schema for each example would take most of the time.
        self.shared_store.do(run.reset_run)
        return self.shared_store

    @rule(sure=st.integers(0, 3))
    def crash(self, sure: int) -> None:
        if sure != 3:  # each costs as much as a dozen other calls
            return
        self.counted["crashes"] += 1
        self.server.drop_connections()
        self.actions.duel.require_every_group_where_it_belongs()

    def close(self) -> None:
        pass


def run_machine(
    machine: type[QueueMachine], examples: int, *, steps: int = 45, repeatable: bool = False
) -> Counter[str]:
    """Run so many examples; the counts of what they came to.

    ``repeatable``: the same examples every time, and no search for a smaller one. They come
    from a fixed seed: Hypothesis's own depends on the source of the class, comments included.
    """
    machine.counted = Counter()
    chosen: dict[str, Any] = {"max_examples": examples, "stateful_step_count": steps}
    if repeatable:
        chosen |= {"phases": [Phase.generate]}
        seed(3)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            **chosen,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return machine.counted
