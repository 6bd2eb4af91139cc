"""The same calls on one store and the model: any difference is an AssertionError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeVar

from atroposlib.api.common.records import (
    HELD,
    AdmissionGrant,
    BatchMember,
    Claim,
    GroupCount,
    GroupState,
    GroupSummary,
    LeasedBatch,
    NewGroup,
    RunDocument,
    Selection,
    StateTotals,
    Stored,
    StoreStats,
)
from atroposlib.api.decisions import fair_share
from atroposlib.api.decisions.batching import choose, complete_buffer
from atroposlib.api.decisions.staleness import StalenessRule
from atroposlib.api.store import Store
from atroposlib.api.store.sql import run
from atroposlib.api.store.sql.ack import (
    Ack,
    Commit,
    Discard,
    DropDead,
    Extend,
    Lookup,
    Revive,
    Rewind,
    dead_batches,
)
from atroposlib.api.store.sql.claim import ClaimBatch
from atroposlib.api.store.sql.run import Admit, Admitted, FreeAbsent, LoadRun, Release, SaveRun
from atroposlib.api.store.sql.schema import Connection, Row
from atroposlib.errors import AtroposError, CorruptPayload, StoreError
from tests.torture.queue.queue_model import KEEPS_PAYLOAD, Model, ModelBatch

T = TypeVar("T")
MOST_TO_SEARCH = 12  # groups up to which the choice is compared with all there are


@dataclass(frozen=True)
class Wish:
    """All that a choice depends on, besides the queue."""

    needs: Mapping[int, int] = field(default_factory=dict)
    weights: Mapping[int | None, float] = field(default_factory=dict)
    rule: StalenessRule = field(default_factory=StalenessRule)


def outcome(act: Callable[[], T]) -> T | type[AtroposError]:
    """What came of it; a refusal counts by its class. A store that fails is no outcome."""
    try:
        return act()
    except AtroposError as error:
        if type(error) is StoreError:
            raise
        return type(error)


class Duel:
    """Calls go to ``store`` first: it chooses the ids, and the model checks the rest."""

    def __init__(self, store: Store, max_bytes: int) -> None:
        self.store = store
        self.model = Model(max_bytes)
        self.model.run = store.ask(LoadRun())
        self.archived = False  # whether the store keeps all retired payloads
        # What a failed call would have done to the model, had it landed.
        self.in_flight: Callable[[Model], Any] | None = None

    # --- calls --------------------------------------------------------------------

    def _both(self, ask: Callable[[], Any], tell: Callable[[Model, Any], Any]) -> Any:
        """``tell`` gets the store's answer for the ids in it, or None: guess them.

        A store that fails leaves the model alone, and the call in ``in_flight``.
        """
        self.in_flight = lambda model: outcome(lambda: tell(model, None))
        got = outcome(ask)
        self.in_flight = None
        expected = outcome(lambda: tell(self.model, got))
        assert got == expected, f"{got} instead of {expected}"
        return got

    def put(self, groups: Sequence[NewGroup], revision: int) -> Any:
        def tell(model: Model, got: Any) -> list[Stored]:
            told = isinstance(got, list)
            gids = [one.gid for one in got] if told else guessed_gids(model, groups)
            return model.put(groups, revision, complete_buffer, gids)

        return self._both(lambda: self.store.put(groups, revision, complete_buffer), tell)

    def claim(self, claim: Claim, wish: Wish) -> Any:
        seen: list[tuple[list[GroupSummary], bytes | None, Selection]] = []

        wrong: list[AssertionError] = []

        def choose_and_note(queue: Sequence[GroupSummary], mixed: bytes | None) -> Selection:
            try:
                seen.append((list(queue), mixed, self.chosen(queue, mixed, claim, wish)))
            except AssertionError as error:  # the writer answers any error by a StoreError
                wrong.append(error)
                raise
            return seen[-1][2]

        def choose_alike(queue: Sequence[GroupSummary], mixed: bytes | None) -> Selection:
            assert seen, f"{queue} was never offered to the chooser"
            shown, shown_mix, selection = seen.pop(0)
            assert (shown, shown_mix) == (list(queue), mixed), f"{shown} instead of {queue}"
            return selection

        def tell(model: Model, got: Any) -> Any:
            if got is None:
                return model.claim(
                    claim, lambda q, m: self.chosen(q, m, claim, wish), model.last_no + 1
                )
            no = got.no if isinstance(got, LeasedBatch) else model.last_no + 1
            return as_batch(model, model.claim(claim, choose_alike, no))

        try:
            got = self._both(lambda: self.store.do(ClaimBatch(claim, choose_and_note)), tell)
        except StoreError:
            if wrong:
                raise wrong[0] from None
            raise
        assert not seen, f"a choice was made for nothing: {seen}"
        if isinstance(got, LeasedBatch):
            assert got.n_seq == claim.size
            self.require_payloads(got.gids)
        return got

    def lookup(self, no: int, generation: int, epoch: int) -> Any:
        return self._both(
            lambda: self.store.ask(Lookup(no, generation, epoch)),
            lambda model, _: as_batch(model, model.lookup(no, generation, epoch)),
        )

    def ack(
        self, no: int, generation: int, epoch: int, *, rank: int | None, commit: bool
    ) -> Any:
        return self._both(
            lambda: self.store.do(Ack(no, generation, epoch, rank=rank, commit=commit)),
            lambda model, _: model.ack(no, generation, epoch, rank, commit),
        )

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> Any:
        return self._both(
            lambda: self.store.do(Extend(no, generation, epoch, lease_until)),
            lambda model, _: model.extend(no, generation, epoch, lease_until),
        )

    def commit(self, no: int, generation: int) -> Any:
        return self._both(
            lambda: self.store.do(Commit(no, generation)),
            lambda model, _: model.commit(no, generation),
        )

    def rewind(self, no: int, generation: int) -> Any:
        return self._both(
            lambda: self.store.do(Rewind(no, generation)),
            lambda model, _: model.rewind(no, generation),
        )

    def discard(self, no: int, gids: Sequence[int]) -> None:
        self._both(
            lambda: self.store.do(Discard(no, gids)),
            lambda model, _: model.discard(no, gids),
        )

    def settle_dead(self, no: int, *, revive: bool) -> None:
        settle = Revive(no) if revive else DropDead(no)
        self._both(
            lambda: self.store.do(settle),
            lambda model, _: model.revive(no) if revive else model.drop_dead(no),
        )
        assert [
            (one.no, one.groups) for one in self.store.ask(dead_batches)
        ] == self.model.dead()

    def free_absent(self, live: Sequence[int]) -> None:
        self._both(
            lambda: self.store.do(FreeAbsent(live)), lambda model, _: model.free_absent(live)
        )

    def admit(self, asked: AdmissionGrant, budget: int, now: float) -> Any:
        return self._both(
            lambda: self.store.do(Admit(asked, budget, now)),
            lambda model, _: model.admit(asked, budget, now),
        )

    def release(self, admission_id: str) -> None:
        self._both(
            lambda: self.store.do(Release(admission_id)),
            lambda model, _: model.release(admission_id),
        )

    def save(self, body: bytes, revision: int, *, fence: bool) -> RunDocument:
        self._both(
            lambda: self.store.do(SaveRun(body, revision, fence=fence)),
            lambda model, _: model.save(body, revision, fence),
        )
        return self.model.run

    def reset(self) -> None:
        self._both(lambda: self.store.do(run.reset_run), lambda model, _: model.reset())

    def chosen(
        self, queue: Sequence[GroupSummary], mixed: bytes | None, claim: Claim, wish: Wish
    ) -> Selection:
        """The choice of the code under test, compared with the whole space of choices."""
        selection = choose(
            queue,
            mixed,
            batch_size=claim.size,
            needs=wish.needs,
            weights=wish.weights,
            policy=wish.rule,
        )
        fresh = [one for one in queue if not too_old(one, wish.rule)]
        assert set(selection.dropped) == {one.gid for one in queue} - {o.gid for o in fresh}
        if len(fresh) <= MOST_TO_SEARCH:
            wanted = first_choice(
                fair_share.order(fresh, wish.weights, fair_share.decode(mixed)),
                claim.size,
                wish.needs,
            )
            assert list(selection.gids) == sorted(wanted), f"{selection} instead of {wanted}"
        return selection

    # --- audits -------------------------------------------------------------------

    def require_same_books(self, now: float) -> None:
        """The store's counts equal a recount, and the bound holds."""
        stats = self.store.stats()
        wanted, run = counts_of(self.model), self.store.ask(LoadRun())
        assert counts_in(stats) == wanted, f"{counts_in(stats)} instead of {wanted}"
        assert run == self.model.run, f"{run} instead of {self.model.run}"
        assert stats.retained_bytes <= self.model.max_bytes
        assert sum(self.store.ask(Admitted(now)).values()) == self.model.admitted(now)

    def require_same_files(self) -> None:
        """A store with a payload log that was just opened: the files hold what the rows
        name, not a byte more, and the counts of live bytes are those of the rows."""
        files, known = self.store._log._files, self.store.ask(_segments)
        sizes = {no: files.path(no).stat().st_size for no in files.numbers()}
        assert sizes == {no: n for no, n, _, _ in known if n}, f"{sizes} instead of {known}"
        assert all(live == counted for _, _, live, counted in known), known

    def require_payloads(self, gids: Sequence[int]) -> None:
        got = outcome(lambda: self.store.read(gids))
        assert isinstance(got, list), f"{got} instead of the payloads of {gids}"
        for gid, payload in zip(gids, got, strict=True):
            new = self.model.groups[gid].new
            assert payload == new.payload

    def require_every_group_where_it_belongs(self) -> None:
        """Group by group: its state through its key, its payload through its id."""
        groups = sorted(self.model.groups.items())
        keyed = [one.new for _, one in groups if one.new.key is not None]
        if keyed:
            got = self.put(keyed, self.model.run.revision)
            assert isinstance(got, list) and all(one.duplicate for one in got), got
        kept = [gid for gid, one in groups if one.state in KEEPS_PAYLOAD]
        self.require_payloads(kept)
        if self.store._archived is None:
            assert self.store.kept_gids(0, len(groups) + 1) == kept
        for gid, one in groups:
            if one.state not in KEEPS_PAYLOAD:
                assert outcome(lambda gid=gid: self.store.read([gid])) is CorruptPayload
                if self.archived:
                    [payload] = self.store.read([gid], retired=True)
                    assert payload == one.new.payload
        for batch in self.model.batches.values():
            if batch.state in (GroupState.LEASED, GroupState.ACKED, GroupState.COMMITTED):
                self.lookup(batch.no, batch.generation, batch.epoch)


def _segments(connection: Connection) -> list[Row]:
    return connection.execute(
        "SELECT no, segment.n_bytes, live_bytes, COALESCE(SUM(payload.n_bytes), 0) "
        "FROM segment LEFT JOIN payload ON segment = no GROUP BY no"
    )


def guessed_gids(model: Model, groups: Sequence[NewGroup]) -> list[int]:
    """Where these would be, given ids in order."""
    known = {one.new.key: gid for gid, one in model.groups.items() if one.new.key}
    gids, last = [], model.last_gid
    for group in groups:
        gid = known.get(group.key) if group.key else None
        if gid is None:
            gid = last = last + 1
        if group.key:
            known[group.key] = gid
        gids.append(gid)
    return gids


def counts_of(model: Model) -> tuple[object, ...]:
    states = (GroupState.ACKED, GroupState.COMMITTED)
    return (
        _group_counts(model),
        _ends(model),
        model.batches_in(*states),
        model.batches_in(GroupState.LEASED),
        model.batches_in(GroupState.DEAD),
        model.delivered(),
        model.retained_bytes(),
        model.run.revision,
        model.fair_share,
    )


def _group_counts(model: Model) -> set[GroupCount]:
    kinds: dict[tuple[GroupState, int | None, int], list[int]] = {}
    for one in model.groups.values():
        if one.state in HELD:
            sizes = kinds.setdefault((one.state, one.new.env, one.new.n_seq), [])
            sizes.append(len(one.new.payload))
    return {GroupCount(*kind, len(sizes), sum(sizes)) for kind, sizes in kinds.items()}


def _ends(model: Model) -> dict[GroupState, StateTotals]:
    ended = [one for one in model.groups.values() if one.state not in HELD]
    return {
        state: StateTotals(len(of_it), sum(one.new.n_seq for one in of_it))
        for state in GroupState
        if (of_it := [one for one in ended if one.state is state])
    }


def counts_in(stats: StoreStats) -> tuple[object, ...]:
    return (
        set(stats.group_counts),
        {state: total for state, total in stats.totals.items() if total.groups},
        stats.batches_acked,
        stats.batches_open,
        stats.batches_dead,
        stats.delivered,
        stats.retained_bytes,
        stats.revision,
        stats.fair_share,
    )


def too_old(group: GroupSummary, rule: StalenessRule) -> bool:
    if rule.policy != "drop" or rule.max_staleness is None:
        return False
    version = group.arrived_version if group.version is None else group.version
    return version is not None and rule.policy_version - version > rule.max_staleness


def first_choice(
    ordered: Sequence[GroupSummary], size: int, needs: Mapping[int, int]
) -> tuple[int, ...]:
    """Of all subsets that fill the batch and keep the minima, the one whose places in
    ``ordered`` come first in the dictionary's sense. Looks at every subset."""
    best: tuple[int, ...] | None = None
    for count in range(1, len(ordered) + 1):
        for places in combinations(range(len(ordered)), count):
            if sum(ordered[i].n_seq for i in places) != size:
                continue
            if any(
                sum(ordered[i].n_seq for i in places if ordered[i].env == env) < need
                for env, need in needs.items()
            ):
                continue
            best = places if best is None else min(best, places)
            break  # combinations come in order: the first of its length is the best of it
    return tuple(ordered[i].gid for i in best or ())


def as_batch(model: Model, batch: ModelBatch | str) -> LeasedBatch | str:
    """The batch as a store hands it over."""
    if isinstance(batch, str):
        return batch
    held = [(gid, model.groups[gid].new) for gid in batch.gids]
    members = tuple(
        BatchMember(
            gid,
            new.env,
            new.n_seq,
            new.n_tokens,
            new.version,
            new.arrived_version,
            len(new.payload),
        )
        for gid, new in held
    )
    return LeasedBatch(
        *(batch.no, batch.epoch, batch.generation, members),
        *(batch.world_size, batch.min_version, batch.dropped),
    )
