"""All that can happen to a queue, each with a few numbers to choose; for any chooser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atroposlib.api.common.records import (
    AdmissionGrant,
    Claim,
    GroupState,
    LeasedBatch,
    NewGroup,
)
from atroposlib.api.store import Store
from atroposlib.api.store.sql.put import MarkReplies
from atroposlib.errors import KeyConflict, RunChanged, StaleGeneration
from tests.torture.queue.model_trainer import Handle, ModelTrainer
from tests.torture.queue.queue_duel import Duel, Wish

MAX_BYTES = 900  # a few dozen payloads: the bound is reached now and then
SIZES = (4, 6, 8)  # sequences per batch
ENDED = (GroupState.ACKED, GroupState.COMMITTED)  # of a batch


@dataclass(frozen=True)
class Draft:
    """A group to be posted; the rest of it follows from its place in the run."""

    n_seq: int
    env: int | None = None
    age: int | None = 0  # policy versions behind the newest; None: it names no version
    keyed: bool = True
    expected: int | None = None
    n_bytes: int = 20


class Actions:
    """A store, its model, a trainer and a clock."""

    def __init__(self, store: Store, max_bytes: int = MAX_BYTES) -> None:
        self.duel = Duel(store, max_bytes)
        self.trainer = ModelTrainer(self.duel)
        self.now = 0.0
        self.policy_version = 3
        self.wish = Wish()
        self.sent: list[NewGroup] = []  # acknowledged, with a key
        self._names = 0
        self.trainer.start(8, commits=True)

    # --- environments -------------------------------------------------------------

    def put(self, drafts: Sequence[Draft]) -> None:
        groups = [self.made(draft) for draft in drafts]
        got = self.duel.put(groups, self.duel.model.run.revision)
        if isinstance(got, list):
            self.sent += [group for group in groups if group.key is not None]

    def made(self, draft: Draft) -> NewGroup:
        self._names += 1
        name = f"group {self._names} "
        version = None if draft.age is None else max(0, self.policy_version - draft.age)
        return NewGroup(
            payload=name.encode().ljust(draft.n_bytes, b"."),
            n_seq=draft.n_seq,
            n_tokens=draft.n_seq * 10,
            env=draft.env,
            key=name if draft.keyed else None,
            version=version,
            arrived_version=self.policy_version,
            arrived=self.now,
            expected=draft.expected,
        )

    def retry(self, i: int, with_new: Draft | None) -> None:
        if self.sent:
            again = [self.sent[i % len(self.sent)]]
            if with_new is not None:
                again += [self.made(with_new)] * 2  # also twice within one call
            got = self.duel.put(again, self.duel.model.run.revision)
            if isinstance(got, list):
                self.sent += [group for group in again[1:2] if group.key is not None]

    def reuse_a_key(self, i: int) -> None:
        if self.sent:
            known = self.sent[i % len(self.sent)]
            groups = [NewGroup(b"n", 1), replace(known, payload=b"o", digest=b"")]
            assert self.duel.put(groups, self.duel.model.run.revision) is KeyConflict

    def put_after_a_change_of_the_run(self) -> None:
        stale = self.duel.model.run.revision - 1
        assert self.duel.put([NewGroup(b"late", 1)], stale) is RunChanged

    def repeat_without_key(self, i: int, fate: str) -> None:
        """Post a group without a key again, after its reply was lost, confirmed, or unknown."""
        model = self.duel.model
        gids = sorted(model.unconfirmed)
        if not gids:
            return
        gid = gids[i % len(gids)]
        since, _ = model.unconfirmed[gid]
        if fate in ("lost", "elsewhere"):
            self.duel.store.do(MarkReplies(lost=[gid]))
            model.unconfirmed[gid] = (since, True)
        elif fate == "confirmed":
            self.duel.store.do(MarkReplies(confirmed=[gid]))
            del model.unconfirmed[gid]
        again = replace(model.groups[gid].new, arrived=self.now)
        if fate == "elsewhere":  # an equal group of another environment is no repeat
            again = replace(again, env=(again.env or 0) + 1)
        self.duel.put([again], model.run.revision)

    # --- the run ------------------------------------------------------------------

    def change_run(self) -> None:
        self._names += 1
        run = self.duel.model.run
        self.duel.save(b"run %d" % self._names, run.revision, fence=False)
        lost = self.duel.save(b"too late", run.revision, fence=True)
        assert lost.body != b"too late"

    def tick(self, seconds: float) -> None:
        self.now += seconds

    def new_policy(self) -> None:
        self.policy_version += 1

    def want(self, wish: Wish) -> None:
        self.wish = replace(wish, rule=replace(wish.rule, policy_version=self.policy_version))

    def reset(self) -> None:
        self.duel.reset()
        self.sent = []
        self.trainer.forget()

    # --- the trainer --------------------------------------------------------------

    def claim(
        self, lease_s: float, world_size: int = 1, *, lost: bool = False, most: int = 20
    ) -> None:
        wish = replace(
            self.wish, rule=replace(self.wish.rule, policy_version=self.policy_version)
        )
        self.trainer.claim(
            Claim(
                generation=self.duel.model.run.generation,
                size=self.trainer.size,
                now=self.now,
                lease_s=lease_s,
                world_size=world_size,
                max_deliveries=most,
            ),
            wish,
            reply_lost=lost,
        )

    def a_zombie_acks(self) -> None:
        """A trainer acks after its lease expired and another trainer has the batch."""
        self.claim(1.0, lost=True)
        self.tick(5.0)
        self.claim(10.0)
        self.act_on_any(1, "ack")

    def a_long_step(self) -> None:
        """Its lease was extended, so the next claim brings something else."""
        self.claim(1.0)
        self.act_on_any(0, "extend")
        self.tick(5.0)
        self.claim(10.0)

    def an_ack_is_lost(self, world_size: int) -> None:
        """All ranks but one acked, then the lease ended: all have to ack again."""
        self.claim(1.0, world_size)
        self.trainer.train(world_size - 1)
        self.tick(5.0)
        self.claim(1.0, world_size)

    def a_checkpoint_says_it(self) -> None:
        """No ack came through, but the checkpoint holds the batch."""
        self.claim(1.0)
        self.trainer.train(0)
        self.trainer.save_checkpoint(also_commit=False)
        self.trainer.commit()

    def a_claim_without_a_name_is_lost(self) -> None:
        """A commit that reaches beyond its batch must leave that to the next claimant."""
        generation, now = self.duel.model.run.generation, self.now
        if self.duel.model.batches_in(GroupState.LEASED) or not self.trainer.commits:
            return
        self.trainer.save_checkpoint(also_commit=False)
        batch = self.duel.claim(
            Claim(generation, self.trainer.size, now, lease_s=9.0), self.wish
        )
        if isinstance(batch, LeasedBatch):
            self.duel.commit(batch.no, generation)
            self.duel.ack(batch.no, generation, batch.epoch, rank=None, commit=False)

    def a_batch_kills_trainers(self) -> None:
        """At its delivery limit it comes after another batch; the next is dead and revived."""
        for _ in range(3):
            self.claim(10.0, most=2)
            self.trainer.start(self.trainer.size, commits=True)
        for _ in range(2):
            self.claim(10.0, most=2)
            self.trainer.train(1)
        for _ in range(4):
            self.claim(10.0, most=2, lost=True)
        self.claim(10.0)
        self.trainer.train(1)
        self.settle_dead(0, revive=True)
        self.claim(10.0)

    def it_diverges(self) -> None:
        """The same process goes back to its checkpoint; what it acked is not its any more."""
        self.claim(10.0)
        self.trainer.train(3)
        self.trainer.roll_back()
        self.act_on_any(0, "extend")
        self.claim(10.0)

    def act_on_any(self, i: int, verb: str) -> None:
        """Use an earlier handle; a later delivery has mostly replaced it."""
        handle = self.handle(i)
        if handle is None:
            return
        if verb == "extend":
            self.duel.extend(handle.no, handle.generation, handle.epoch, self.now + 30.0)
        elif verb == "lookup":
            self.duel.lookup(handle.no, handle.generation, handle.epoch)
        elif not self.is_current(handle):
            who = (handle.no, handle.generation, handle.epoch)
            rank = None if verb == "ack" else handle.world_size  # no such rank, either
            assert self.duel.ack(*who, rank=rank, commit=True) is StaleGeneration

    def handle(self, i: int) -> Handle | None:
        handles = self.trainer.handles
        return handles[-1 - i % len(handles)] if handles else None  # 0 is the latest

    def is_current(self, handle: Handle) -> bool:
        batch = self.duel.model.batches.get(handle.no)
        if batch is None or batch.state is GroupState.DEAD:
            return False
        mine = batch.generation == self.duel.model.run.generation
        return mine and batch.since <= handle.epoch <= batch.epoch

    def claim_as_a_zombie(self) -> None:
        old = self.duel.model.run.generation - 1
        claim = Claim(generation=old, size=8, now=self.now, lease_s=9.0)
        assert self.duel.claim(claim, self.wish) is StaleGeneration
        assert self.duel.commit(0, old) is StaleGeneration
        assert self.duel.rewind(0, old) is StaleGeneration

    def repeat_an_answered_claim(self, i: int) -> None:
        """The first of two equal claims is served last, after the ack of their batch."""
        model = self.duel.model
        done = [b for b in model.batches.values() if b.state in ENDED]
        names = [
            b.claim_id for b in done if b.generation == model.run.generation and b.claim_id
        ]
        for name in names[-1 - i % 8 :][:1]:
            claim = Claim(model.run.generation, 8, self.now, lease_s=9.0, claim_id=name)
            assert self.duel.claim(claim, self.wish) is StaleGeneration

    def discard(self, i: int, which: int) -> None:
        """A delivery found a damaged payload in an untrained batch."""
        numbers = sorted(self.duel.model.batches)
        if not numbers:
            return
        no = numbers[i % len(numbers)]
        if no not in self.trainer.trained.numbers + self.trainer.checkpoint.numbers:
            gids = self.duel.model.batches[no].gids
            self.duel.discard(no, [gids[which % len(gids)], 10**9])

    def settle_dead(self, i: int, revive: bool) -> None:
        """An operator revives or drops a dead batch, or one that is not dead."""
        dead = [no for no, _ in self.duel.model.dead()] or sorted(self.duel.model.batches)
        if dead:
            self.duel.settle_dead(dead[i % len(dead)], revive=revive)

    # --- admission ----------------------------------------------------------------

    def admit(self, i: int, n_seq: int, room: int, ttl_s: float) -> None:
        """``room``: how far the budget lies above what counts against it, or below."""
        budget = self.duel.model.accepted() + room
        env = (None, 0, 1)[i]
        asked = AdmissionGrant(f"lease {i}", env, n_seq, self.now + ttl_s)
        self.duel.admit(asked, budget, self.now)

    def release(self, i: int) -> None:
        known = self.duel.model.admissions.get(f"lease {i}")
        if (
            known is None or known.until > self.now
        ):  # the store cannot detect the end of an admission
            self.duel.release(f"lease {i}")
