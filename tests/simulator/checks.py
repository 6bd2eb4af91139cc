"""What has to hold: a record of all that was posted, acknowledged and trained on.

A violation is an AssertionError. The trace of what happened has a digest: the same seed gives
the same one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from atroposlib.api.decisions.run_state import MINIMUM_TIMEOUT_S
from atroposlib.wire import ClaimedBatch, ScoredData
from tests.simulator.host import ApiHost
from tests.simulator.plan import CALM_S, EnvSpec, Plan

LIVE_S = MINIMUM_TIMEOUT_S - 10.0


@dataclass
class Lineage:
    """Training history of weights: batch numbers in order, and the keys of their groups."""

    life: int = 0  # of the trainer that wrote it
    numbers: list[int] = field(default_factory=list)
    keys: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Lineage:
        return Lineage(self.life, list(self.numbers), Counter(self.keys))

    @property
    def last(self) -> int:
        return self.numbers[-1] if self.numbers else 0


class Ledger:
    """Groups by key, batches by number, and the weights."""

    def __init__(self, clock: Callable[[], float], plan: Plan) -> None:
        self._clock, self._plan = clock, plan
        self._size, self._max_bytes = plan.trainer.batch_size, plan.max_bytes
        self.posted: dict[str, list[list[int]]] = {}  # key -> tokens
        self.acked: dict[str, float] = {}  # key -> when
        self.batches: dict[int, tuple[str, ...]] = {}
        self.trained = Lineage()  # of the latest trainer
        self._generation = 0  # of that trainer
        self.checkpoint = Lineage()
        self.steps: list[float] = []
        self._done: dict[int, int] = {}  # number -> generation, of acks that were answered
        self.seen: Counter[str] = Counter()
        self.killed: list[tuple[float, EnvSpec]] = []
        self._trace = hashlib.blake2b(digest_size=16)
        self.lines: list[str] = []
        self.virtual_s = 0.0
        self._version = (0, 0)
        self._fits: dict[str, float] = {}  # key of a late group -> when a batch could hold it
        self._full = False  # the store, at the last audit: its batches may miss minima

    def note(self, who: str, what: str) -> None:
        self.virtual_s = self._clock()
        line = f"{self.virtual_s:10.4f} {who}: {what}"
        self._trace.update(line.encode())
        self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._trace.hexdigest()

    # --- events -------------------------------------------------------------------------

    def post(self, key: str, tokens: list[list[int]]) -> None:
        self.posted[key] = tokens

    def acknowledge(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.acked.setdefault(key, self._clock())

    def deliver(
        self, batch: ClaimedBatch, lineage: Lineage, full: bool = False
    ) -> tuple[str, ...]:
        """The keys of a delivered batch, claimed from a store that is perhaps ``full``."""
        no, groups = batch.batch_no, batch.batch or []
        assert no is not None and batch.epoch is not None
        keys = tuple(str(one.idempotency_key) for one in groups)
        rows = sum(len(one.tokens) for one in groups)
        assert rows == self._size, f"batch {no} has {rows} sequences, not {self._size}"
        for key, one in zip(keys, groups):
            self._require_posted(no, key, one)
        known = self.batches.setdefault(no, keys)
        assert known == keys, f"batch {no} was {known} and is {keys}"
        if no not in lineage.numbers:
            assert no > lineage.last, f"batch {no} comes after {lineage.last}"
            twice = [key for key in keys if key in lineage.keys]
            assert not twice, f"batch {no} has groups that are trained on: {twice}"
        self.seen["deliveries"] += 1
        self.seen["deliveries again"] += batch.epoch > 1
        if batch.epoch == 1:
            self._require_fresh(no, groups, len(lineage.numbers))
            if not (self._full or full):
                self._require_minima(no, groups, keys)
        return keys

    def _require_fresh(self, no: int, groups: Sequence[ScoredData], version: int) -> None:
        rule = self._plan.trainer
        if rule.max_staleness is None or rule.policy == "keep":
            return
        used = {v for one in groups for row in one.versions or [] for v in row if v >= 0}
        oldest = min(used, default=version)
        assert oldest >= version - rule.max_staleness, f"batch {no}: {oldest} at {version}"

    def _require_minima(
        self, no: int, groups: Sequence[ScoredData], keys: Sequence[str]
    ) -> None:
        """Of environments that are surely live: a group of theirs was just acknowledged."""
        killed = {at: env for at, env in self.killed if at > self._clock() - 2 * LIVE_S}
        shares = [env.minimum or 0.0 for env in (*self._plan.envs, *killed.values())]
        if sum(shares) > 1.0:  # with those of former lives: all of them shrink
            return
        for env in self._plan.envs:
            live = any(
                key.startswith(f"{env.name}/") and at > self._clock() - LIVE_S
                for key, at in self.acked.items()
            )
            rows = sum(
                len(one.tokens)
                for key, one in zip(keys, groups)
                if key.startswith(f"{env.name}/")
            )
            least = ceil(self._size * (env.minimum or 0.0))
            self.seen["minima"] += bool(least and live)
            assert rows >= least or not live, f"batch {no}: {rows} of {least} of {env.name}"

    def _require_posted(self, no: int, key: str, one: ScoredData) -> None:
        wanted = self.posted.get(key)
        assert wanted is not None, f"batch {no}: {key} was never posted"
        assert one.tokens == wanted, f"batch {no}: {key} came back as {one.tokens}"

    def continues(self, lineage: Lineage, generation: int) -> None:
        """A trainer was registered. The answers to one that is fenced since may come late."""
        if generation >= self._generation:
            self.trained, self._generation = lineage, generation

    def learn(self, lineage: Lineage, no: int, keys: Sequence[str]) -> None:
        assert no not in lineage.numbers, f"batch {no} is trained on twice"
        lineage.numbers.append(no)
        lineage.keys.update(keys)
        self.steps.append(self._clock())
        self.seen["steps"] += 1

    def done(self, no: int, generation: int) -> None:
        """The ack of a batch was answered."""
        self._done[no] = generation

    # --- what holds at any time -----------------------------------------------------------

    def audit(self, host: ApiHost) -> None:
        """Compare the store with what was acknowledged and trained."""
        if not host.up or host.life is None:
            return
        self.seen["audits"] += 1
        rows, store = host.rows(), host.life.store
        for key in self.acked:
            assert key in rows, f"{key} was acknowledged and is gone"
            state = rows[key][0]
            if state == "committed":
                assert key in self.checkpoint.keys, f"{key} is committed and in no checkpoint"
            elif state == "acked":
                known = key in self.checkpoint.keys or key in self.trained.keys
                assert known, f"{key} is acked and was not trained on"
        strange = rows.keys() - self.posted.keys()
        assert not strange, f"{strange} are stored and were never posted"
        stats = store.stats()
        retained = stats.retained_bytes
        assert retained <= self._max_bytes, f"{retained} bytes are kept"
        self._full = host.full
        view, lives = host.life.service.context.view, self.seen["registrations"]
        assert view.generation <= lives, f"generation {view.generation} of {lives} trainers"
        for no, generation in self._done.items():
            states = {rows[key][0] for key in self.batches[no]}
            over = generation < view.generation or states <= {"acked", "committed"}
            assert over, f"batch {no} was acked and is {states}"
        before, self._version = self._version, (view.generation, view.run.policy_version)
        assert self._version >= before, f"version {self._version} after {before}"
        if self._clock() > self._plan.trouble_s + CALM_S:
            self._note_fits(rows, host.needs)

    def _note_fits(
        self, rows: Mapping[str, tuple[str, int, int]], needs: Mapping[int, int]
    ) -> None:
        queue = {key: (env, n) for key, (state, env, n) in rows.items() if state == "pending"}
        late = [key for key in queue if self.acked.get(key, inf) <= self._plan.trouble_s]
        for kind in {queue[key] for key in late}:
            if completes(kind, queue.values(), self._size, needs):
                for key in (key for key in late if queue[key] == kind):
                    self._fits.setdefault(key, self._clock())

    async def left_over(self, host: ApiHost, calm: float, last: bool) -> str:
        """What was acknowledged in the trouble and is not trained on; a step since ``calm``.

        At the ``last`` look without the groups that an exact batch of what was queued could
        hold at no audit, or first at one less than a calm ago.
        """
        assert host.up and host.life is not None, "the API is not there"
        why = (await host.life.service.status()).blocked_reason
        assert any(at > calm for at in self.steps), f"no step since {calm:.0f} s: {why}"
        rows, since = host.rows(), self._plan.trouble_s
        late = {key: rows[key][0] for key, at in self.acked.items() if at <= since}
        late = {key: state for key, state in late.items() if self._waits(key, state)}
        if last:
            bound = self._clock() - CALM_S
            odd = {k for k in late if late[k] == "pending" and self._fits.get(k, inf) > bound}
            self.seen["groups that fit no batch"] += len(odd)
            late = {key: state for key, state in late.items() if key not in odd}
        waits = dict(Counter(late.values()))
        said = f"acknowledged before {since:.0f} s and not trained on: {waits}: {why}"
        return said if waits else ""

    def _waits(self, key: str, state: str) -> bool:
        return key not in self.trained.keys and state != "dropped"


def completes(
    kind: tuple[int, int],
    queue: Iterable[tuple[int, int]],
    size: int,
    needs: Mapping[int, int],
) -> bool:
    """Whether some of ``queue``, (env, sequences) each, with one of ``kind`` are a whole batch.

    By every sum that is possible, so that it shares nothing with ``api/decisions``.
    """
    others = list(queue)
    others.remove(kind)
    owed = sorted(needs)

    def plus(held: tuple[int, ...], one: tuple[int, int]) -> tuple[int, ...]:
        more = (n + one[1] * (env == one[0]) for env, n in zip(owed, held[1:]))
        return (held[0] + one[1], *more)

    sums = {plus((0,) * (len(owed) + 1), kind)}
    for one in others:
        sums |= {more for held in sums if (more := plus(held, one))[0] <= size}
    return any(
        held[0] == size and all(n >= needs[env] for env, n in zip(owed, held[1:]))
        for held in sums
    )
