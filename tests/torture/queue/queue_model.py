"""Reference model of the queue as a few dictionaries; every store must behave like it.

Plain loops over everything, no index, no counter: slow, and short enough to believe.
Group ids and batch numbers are the store's to choose, so calls that make some receive them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from atroposlib.api.common.records import (
    HELD,
    AdmissionGrant,
    BufferPolicy,
    Chooser,
    Claim,
    CommitResult,
    GroupState,
    GroupSummary,
    NewGroup,
    RewindResult,
    RunDocument,
    Stored,
)
from atroposlib.api.store.sql.claim import RECENT_BATCHES
from atroposlib.api.store.sql.put import LOST_REPLY_WINDOW_S, ReplyInDoubt
from atroposlib.errors import ConfigError, KeyConflict, RunChanged, StaleGeneration, StoreFull
from tests.torture.queue.model_rows import KEEPS_PAYLOAD, NOBODY, ModelBatch, ModelGroup, S


class Model:
    """Method by method the seam of ``atroposlib.api.store.sql.sql_store``."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.groups: dict[int, ModelGroup] = {}
        self.batches: dict[int, ModelBatch] = {}
        self.admissions: dict[str, AdmissionGrant] = {}
        self.run = RunDocument(0, 0, None)
        self.fair_share: bytes | None = None
        # gid -> since, whether it is lost
        self.unconfirmed: dict[int, tuple[float, bool]] = {}
        self.dropped: list[int] = []  # generations of batches that were dropped
        self.last_gid = 0
        self.last_no = 0

    # --- groups in ----------------------------------------------------------------

    def put(
        self,
        groups: Sequence[NewGroup],
        revision: int,
        complete: BufferPolicy,
        gids: list[int],
    ) -> list[Stored]:
        """``gids`` is where the store put each of them."""
        if revision != self.run.revision:
            raise RunChanged
        repeats = self._repeats(groups)
        gid_of = {one.new.key: gid for gid, one in self.groups.items()}
        content = {one.new.key: one.new.payload for one in self.groups.values()}
        fresh = []
        for group, old in zip(groups, repeats):
            fresh.append(old is None and (group.key is None or group.key not in content))
            if content.setdefault(group.key, group.payload) != group.payload and group.key:
                raise KeyConflict
        adds = sum(len(group.payload) for group, new in zip(groups, fresh) if new)
        if adds and self.retained_bytes() + adds > self.max_bytes:
            raise StoreFull
        for old, group in zip(repeats, groups):
            if old is not None:
                self.unconfirmed[old] = (group.arrived, False)
        entered = {gid: known.state for gid, known in self.groups.items()}
        for gid, group, new, old in zip(gids, groups, fresh, repeats):
            if not new:
                known = gid_of[group.key] if old is None else old
                assert gid == known, f"{group.key} is {known}, not {gid}"
                continue
            if group.key is None:
                self.unconfirmed[gid] = (group.arrived, False)
            assert gid > self.last_gid, f"group {gid} is not newer than {self.last_gid}"
            self.last_gid = gid_of[group.key] = gid
            state = S.PENDING if group.expected is None else S.BUFFERED
            self.groups[gid] = ModelGroup(gid, group, state)
            entered[gid] = state
            if group.expected is not None:
                self._complete(group.env, group.expected, complete)
        return [
            Stored(
                gid,
                not new,
                self.groups[gid].state,
                self.buffered(group.env)
                if group.expected is not None or entered[gid] is S.BUFFERED
                else 0,
            )
            for gid, new, group in zip(gids, fresh, groups)
        ]

    def _repeats(self, groups: Sequence[NewGroup]) -> list[int | None]:
        found: list[int | None] = []
        for group in groups:
            alike = [
                gid
                for gid, (since, _) in sorted(self.unconfirmed.items())
                if replace(self.groups[gid].new, arrived=0) == replace(group, arrived=0)
                and since >= group.arrived - LOST_REPLY_WINDOW_S
                and gid not in found
            ]
            found.append(alike[0] if alike and group.key is None else None)
            if found[-1] is not None and not self.unconfirmed[found[-1]][1]:
                raise ReplyInDoubt
        return found

    def _complete(self, env: int | None, expected: int, complete: BufferPolicy) -> None:
        while True:
            buffer: list[tuple[int, int]] = []
            shown: Counter[int] = Counter()
            for one in self._in(S.BUFFERED):
                n_seq = one.new.n_seq
                if one.new.env == env and shown[n_seq] < expected // n_seq:
                    shown[n_seq] += 1
                    buffer.append((one.gid, n_seq))
            whole = complete(buffer, expected)
            if not whole:
                return
            self._move(whole, S.PENDING)

    # --- batches out --------------------------------------------------------------

    def claim(self, claim: Claim, choose: Chooser, no: int) -> ModelBatch | str:
        """``no`` is the number of the batch, should this make a new one."""
        self._require(claim.generation)
        if claim.claim_id is not None and self._answered(claim):
            raise StaleGeneration
        last: list[ModelBatch] = []
        while (again := self._to_deliver_again(claim, last)) is not None:
            if self.sequences(again.gids) != claim.size:
                self._move(again.gids, S.PENDING)
                again.state = S.PENDING
            elif again.tries > claim.max_deliveries:
                self._end(again, S.DEAD)
            elif again.tries == claim.max_deliveries and not self._proven():
                if claim.claim_id is not None and self._holder(again) == self._holder(claim):
                    again.tries -= 1
                    return self._deliver(again, claim)
                last.append(again)
            else:
                self._put_last(last, claim, self.last_no)
                return self._deliver(again, claim)
        dropped = 0
        while True:
            selection = choose(self.shown(claim.size), self.fair_share)
            self._move(selection.dropped, S.DROPPED)
            dropped += len(selection.dropped)
            if selection.gids:
                break
            if not selection.dropped:
                assert selection.blocked_reason is not None
                if last:
                    first = min(last, key=lambda batch: (batch.epoch, -batch.no))
                    first.tries -= 1
                    last.remove(first)
                    self._put_last(last, claim, self.last_no)
                    return self._deliver(first, claim)
                return selection.blocked_reason
        assert no > self.last_no, f"batch {no} is not newer than {self.last_no}"
        self.last_no, self.fair_share = no, selection.fair_share
        self.batches[no] = ModelBatch(no, selection.gids, selection.min_version, dropped)
        self._move(selection.gids, S.LEASED)
        self._put_last(last, claim, no)
        return self._deliver(self.batches[no], claim)

    def _put_last(self, last: Sequence[ModelBatch], claim: Claim, no: int) -> None:
        for batch in last:
            if batch.generation != claim.generation:
                no = self._renumber(batch, no + 1)

    def _renumber(self, batch: ModelBatch, no: int) -> int:
        del self.batches[batch.no]
        batch.no = self.last_no = no
        self.batches[no] = batch
        return no

    def _answered(self, claim: Claim) -> bool:
        done = [b for b in self.batches.values() if b.state in (S.ACKED, S.COMMITTED)]
        recent = [b for b in done if b.no > self.last_no - RECENT_BATCHES]
        return any(self._holder(b) == self._holder(claim) for b in recent)

    def _proven(self) -> bool:
        done = [b for b in self.batches.values() if b.state in (S.ACKED, S.COMMITTED)]
        return any(batch.generation == self.run.generation for batch in done)

    def _holder(self, one: ModelBatch | Claim) -> tuple[int, str | None]:
        return one.generation, one.claim_id

    def _to_deliver_again(self, claim: Claim, last: list[ModelBatch]) -> ModelBatch | None:
        open_ones = [batch for batch in self._open() if batch not in last]
        if claim.claim_id is not None:
            for batch in open_ones:
                if batch.claim_id == claim.claim_id:
                    return batch
        for batch in open_ones:
            if batch.lease_until <= claim.now or batch.generation != claim.generation:
                return batch
        return None

    def _deliver(self, batch: ModelBatch, claim: Claim) -> ModelBatch:
        batch.epoch += 1
        batch.tries += 1
        repeated = claim.claim_id is not None and self._holder(batch) == self._holder(claim)
        if not repeated:
            batch.since = batch.epoch
        if not repeated or batch.world_size != claim.world_size:
            batch.ranks = set()
        batch.generation, batch.lease_until = claim.generation, claim.now + claim.lease_s
        batch.claim_id, batch.world_size = claim.claim_id, claim.world_size
        return batch

    def shown(self, size: int) -> list[GroupSummary]:
        """Input of a chooser: of each kind the oldest groups that could be part of one batch."""
        kinds: Counter[tuple[int | None, int]] = Counter()
        queue = []
        for one in self._in(S.PENDING):
            kinds[one.new.env, one.new.n_seq] += 1
            if kinds[one.new.env, one.new.n_seq] <= size // one.new.n_seq:
                queue.append(one.summary())
        return queue

    def discard(self, no: int, gids: Sequence[int]) -> None:
        batch = self.batches.get(no)
        if batch is None or batch.state is not S.LEASED:
            return
        damaged = [gid for gid in batch.gids if gid in gids]
        if damaged:
            self._move(batch.gids, S.PENDING)
            self._move(damaged, S.DEAD)
            batch.state = S.PENDING

    def lookup(self, no: int, generation: int, epoch: int) -> ModelBatch:
        batch = self._owned(no, generation, epoch)
        if batch.state is S.COMMITTED:
            raise StaleGeneration
        return batch

    def _owned(self, no: int, generation: int, epoch: int) -> ModelBatch:
        self._require(generation)
        batch = self.batches.get(no)
        if batch is None or batch.state in (S.PENDING, S.DEAD):
            raise StaleGeneration
        if batch.generation != generation or not batch.since <= epoch <= batch.epoch:
            raise StaleGeneration
        return batch

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        self._owned(no, generation, epoch).lease_until = lease_until

    def ack(
        self, no: int, generation: int, epoch: int, rank: int | None, commit: bool
    ) -> bool:
        batch = self._owned(no, generation, epoch)
        if rank is not None and not 0 <= rank < batch.world_size:
            raise ConfigError
        if batch.state is not S.LEASED:
            return False
        batch.ranks |= set(range(batch.world_size)) if rank is None else {rank}
        if len(batch.ranks) < batch.world_size:
            return False
        self._end(batch, S.COMMITTED if commit else S.ACKED)
        return True

    def commit(self, no: int, generation: int) -> CommitResult:
        self._require(generation, no)
        held = [b for b in self._upto(no) if b.state in (S.LEASED, S.ACKED)]
        lost = [b for b in held if b.state is S.LEASED and b.claim_id is None]
        for batch in [one for one in held if one not in lost]:
            self._end(batch, S.COMMITTED)
        return CommitResult(len(held) - len(lost), tuple(sorted(b.no for b in lost)))

    def rewind(self, no: int, generation: int) -> RewindResult:
        self._require(generation, no)
        for batch in self._upto(no):
            if batch.state is S.LEASED:
                self._end(batch, S.ACKED)
        later = [batch for batch in self.batches.values() if batch.no > no]
        replayed = [batch for batch in later if batch.state is S.ACKED]
        for batch in replayed:
            self._end(batch, S.LEASED)
        for batch in later:
            if batch.state is S.LEASED:
                batch.generation, batch.claim_id, batch.ranks = NOBODY, None, set()
        return RewindResult(len(replayed), sum(b.state is S.COMMITTED for b in later))

    def revive(self, no: int) -> bool:
        batch = self.batches.get(no)
        if batch is None or batch.state is not S.DEAD:
            return False
        self._end(batch, S.LEASED)
        batch.generation, batch.claim_id, batch.ranks = NOBODY, None, set()
        self._renumber(batch, self.last_no + 1)
        return True

    def drop_dead(self, no: int) -> bool:
        """0: the damaged groups, which belong to no batch."""
        of_batches = {
            gid: b.no for b in self.batches.values() if b.state is S.DEAD for gid in b.gids
        }
        gids = [one.gid for one in self._in(S.DEAD) if of_batches.get(one.gid, 0) == no]
        self._move(gids, S.DROPPED)
        if gids and no:
            self.dropped.append(self.batches.pop(no).generation)
        return bool(gids)

    def dead(self) -> list[tuple[int, int]]:
        """(no, groups) of each; 0: without a batch."""
        of_batches = {
            gid: b.no for b in self.batches.values() if b.state is S.DEAD for gid in b.gids
        }
        counts = Counter(of_batches.get(one.gid, 0) for one in self._in(S.DEAD))
        return sorted(counts.items())

    def free_absent(self, live: Sequence[int]) -> tuple[int, int]:
        gone = [one.gid for one in self._in(S.BUFFERED) if one.new.env not in (*live, None)]
        self._move(gone, S.DROPPED)
        kept = {k: a for k, a in self.admissions.items() if a.env in (*live, None)}
        ended, self.admissions = len(self.admissions) - len(kept), kept
        return len(gone), ended

    # --- admission ----------------------------------------------------------------

    def admit(self, asked: AdmissionGrant, budget: int, now: float) -> int:
        self.admissions = {k: one for k, one in self.admissions.items() if one.until > now}
        if (known := self.admissions.get(asked.admission_id)) is not None:
            until = max(known.until, asked.until)
            self.admissions[asked.admission_id] = replace(known, until=until)
            return known.n_seq
        room = budget - self.accepted() - self.admitted(now)
        granted = max(0, min(asked.n_seq, room))
        if granted:
            self.admissions[asked.admission_id] = replace(asked, n_seq=granted)
        return granted

    def release(self, admission_id: str) -> bool:
        return self.admissions.pop(admission_id, None) is not None

    def admitted(self, now: float) -> int:
        return sum(one.n_seq for one in self.admissions.values() if one.until > now)

    # --- the run ------------------------------------------------------------------

    def save(self, body: bytes, revision: int, fence: bool) -> RunDocument:
        if revision != self.run.revision:
            raise RunChanged
        self.run = RunDocument(revision + 1, self.run.generation + fence, body)
        return self.run

    def reset(self) -> RunDocument:
        run, gid, no = self.run, self.last_gid, self.last_no
        self.__init__(self.max_bytes)  # type: ignore[misc]
        self.run = RunDocument(run.revision + 1, run.generation + 1, None)
        self.last_gid, self.last_no = gid, no
        return self.run

    def batches_in(self, *states: GroupState) -> int:
        return sum(batch.state in states for batch in self.batches.values())

    def delivered(self) -> int:
        """Batches that the current generation holds or held."""
        own = [b for b in self.batches.values() if b.generation == self.run.generation]
        dropped = self.dropped.count(self.run.generation)
        return dropped + sum(batch.state is not S.PENDING for batch in own)

    def accepted(self) -> int:
        """Sequences that count against the staleness budget."""
        counted = HELD | {S.ACKED, S.COMMITTED}
        return sum(one.new.n_seq for one in self.groups.values() if one.state in counted)

    def retained_bytes(self) -> int:
        kept = [one for one in self.groups.values() if one.state in KEEPS_PAYLOAD]
        return sum(len(one.new.payload) for one in kept)

    def buffered(self, env: int | None) -> int:
        return sum(one.new.n_seq for one in self._in(S.BUFFERED) if one.new.env == env)

    def sequences(self, gids: Iterable[int]) -> int:
        return sum(self.groups[gid].new.n_seq for gid in gids)

    def _in(self, state: GroupState) -> list[ModelGroup]:
        return [one for _, one in sorted(self.groups.items()) if one.state is state]

    def _open(self) -> list[ModelBatch]:
        return [b for _, b in sorted(self.batches.items()) if b.state is S.LEASED]

    def _upto(self, no: int) -> list[ModelBatch]:
        return [batch for batch in self.batches.values() if batch.no <= no]

    def _move(self, gids: Iterable[int], state: GroupState) -> None:
        for gid in gids:
            self.groups[gid].state = state

    def _end(self, batch: ModelBatch, state: GroupState) -> None:
        batch.state, batch.tries = state, 0
        self._move(batch.gids, state)

    def _require(self, generation: int, no: int = 0) -> None:
        if generation != self.run.generation or not 0 <= no <= self.last_no:
            raise StaleGeneration
