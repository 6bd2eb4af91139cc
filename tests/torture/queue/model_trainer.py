"""A trainer with a checkpoint, as every trainer should be: the promise is made to it.

It trains on batches in order and remembers which; a checkpoint is a copy of that memory.
After a crash it goes on from the copy: it registers, and rewinds to the last number in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from atroposlib.api.common.records import Claim, GroupState, LeasedBatch
from tests.torture.queue.queue_duel import Duel, Wish


@dataclass(frozen=True)
class Handle:
    """Identity of a delivered batch."""

    no: int
    generation: int
    epoch: int
    world_size: int = 1


@dataclass
class Lineage:
    """Training history of the weights: batch numbers in order, and their groups."""

    numbers: list[int] = field(default_factory=list)
    gids: set[int] = field(default_factory=set)

    def copy(self) -> Lineage:
        return Lineage(list(self.numbers), set(self.gids))

    @property
    def last(self) -> int:
        return self.numbers[-1] if self.numbers else 0


class ModelTrainer:
    """Acts on the store through a duel, so that each answer is checked as well."""

    def __init__(self, duel: Duel) -> None:
        self._duel = duel
        self.commits = True
        self.size = 8
        self.trained, self.checkpoint = Lineage(), Lineage()
        self.held: dict[int, LeasedBatch] = {}  # delivered, not trained on yet
        self.handles: list[Handle] = []  # ever handed out, to this trainer or an earlier one
        self._claims = 0

    def start(self, size: int, commits: bool) -> None:
        """A new process, from the checkpoint."""
        self.size, self.commits = size, commits
        if not commits:  # it never rewinds, so what it trained on is not to be forgotten
            self.checkpoint = self.trained
        self.trained, self.held = self.checkpoint.copy(), {}
        self._claims += 1
        run = self._duel.model.run
        self._duel.save(b"registered %d" % size, run.revision, fence=True)
        self.rewind()

    def rewind(self) -> None:
        # A reset forgets batches, not their numbers: this one may be from before it.
        self._duel.rewind(self.trained.last, self._duel.model.run.generation)

    def claim(self, claim: Claim, wish: Wish, *, reply_lost: bool) -> None:
        got = self._duel.claim(replace(claim, claim_id=f"claim {self._claims}"), wish)
        if isinstance(got, LeasedBatch):
            self.handles.append(Handle(got.no, got.generation, got.epoch, got.world_size))
        if reply_lost:
            return  # the same claim_id follows
        self._claims += 1
        if not isinstance(got, LeasedBatch):
            return
        if got.no in self.trained.numbers:  # its ack was lost
            self.ack(got, 1)
        else:
            assert got.no > self.trained.last, f"{got.no} after {self.trained.last}"
            self.held[got.no] = got

    def train(self, acks: int) -> None:
        """On the oldest batch at hand; ``acks`` ranks ack before something breaks."""
        if not self.held:
            return
        batch = self.held.pop(min(self.held))
        now = self._duel.model.batches.get(batch.no)
        if now is None or now.state is not GroupState.LEASED:
            return  # a damaged payload ended it while it was being delivered, or it was dead
        assert batch.no not in self.trained.numbers
        twice = self.trained.gids & set(batch.gids)
        assert not twice, f"groups {twice} are trained on twice"
        self.trained.numbers.append(batch.no)
        self.trained.gids |= set(batch.gids)
        self.ack(batch, acks)

    def ack(self, batch: LeasedBatch, acks: int) -> None:
        """By so many ranks; each delivery begins with the one that came last before."""
        for i in range(min(acks, batch.world_size)):
            rank = (i - batch.epoch) % batch.world_size
            self._duel.ack(
                batch.no,
                batch.generation,
                batch.epoch,
                rank=rank if batch.world_size > 1 else None,
                commit=not self.commits,
            )

    def save_checkpoint(self, also_commit: bool) -> None:
        """Two are kept: what the one before holds is committed, as this one may yet break."""
        before, self.checkpoint = self.checkpoint, self.trained.copy()
        if also_commit:
            self._duel.commit(before.last, self._duel.model.run.generation)

    def commit(self) -> None:
        self._duel.commit(self.checkpoint.last, self._duel.model.run.generation)

    def roll_back(self) -> None:
        """Training diverged: the same process goes on from its checkpoint."""
        if self._duel.model.batches_in(GroupState.LEASED) == 0 and self.commits:
            self.trained = self.checkpoint.copy()
            self.rewind()

    def forget(self) -> None:
        """The run was reset: a new one begins, from the first weights."""
        self.trained, self.checkpoint, self.held = Lineage(), Lineage(), {}
        self._claims += 1
