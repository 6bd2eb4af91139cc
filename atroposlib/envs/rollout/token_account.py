"""Account of the tokens that servers returned to an environment: each sample has an end state.

    reply --> open tally of a sample --ends well--> tally of its rollout --.
                     '--fails--> dropped/<outcome>                         |
    rollout ends: rows sent --> posted; the remaining tokens --> masked <-'
                  groups dropped --> dropped/<reason>
    reply outside of a rollout --> evaluated, helper, discarded/<reason>

The states add up to all returned tokens at any moment; the tokens of open tallies are in_flight.
A sample counts under the oldest version of its tokens. What becomes of posted rows is known to
the rollout API, see ``atroposlib.api.decisions.balance``.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from atroposlib.generation.engines.returned import (
    ReturnedTokens,
    token_receiver,
    use_receiver,
)
from atroposlib.generation.sampling.generation import UNKNOWN_VERSION
from atroposlib.wire.messages import MASKED, EnvIdentifier
from atroposlib.wire.status import (
    EVALUATED,
    HELPER,
    IN_FLIGHT,
    JOURNALLED,
    MASKED_STATE,
    OLDER_VERSIONS,
    POSTED,
    RECOVERED,
    SUPPLIED,
    AccountCount,
    AccountReport,
    StateCount,
    discard_state,
    drop_state,
)

KEPT_VERSIONS = 16  # newest versions reported apart; older versions are reported together
NO_GROUP = "no_group"  # the environment returned nothing for the item
CANCELLED = "cancelled"  # a sample whose group was given up
LATE = "late"  # a reply that arrived after the end of its sample
REPORT_EVERY_S = 10.0
REPEAT_EVERY_S = 30.0  # no change, open samples; below SILENT_AFTER_S


class RowCount(NamedTuple):
    """Trained tokens of a row, and the oldest version of its sampled tokens."""

    version: int
    tokens: int


class GroupEnd(NamedTuple):
    """State in which a group of a rollout ended; without rows: no group was made."""

    state: str
    rows: Sequence[RowCount] = ()


@dataclass(eq=False)
class Tally:
    """Returned tokens of a sample or a rollout that has not ended."""

    tokens: int = 0
    samples: int = 0  # samples of this rollout that ended well
    version: int = UNKNOWN_VERSION  # the oldest known
    ends: list[GroupEnd] = field(default_factory=list)
    failure: str = CANCELLED  # outcome of a sample that is not kept
    is_open: bool = True

    def add(self, tokens: int, version: int) -> None:
        """Count tokens, and keep the older version."""
        self.tokens += tokens
        known = [v for v in (self.version, version) if v != UNKNOWN_VERSION]
        self.version = min(known, default=UNKNOWN_VERSION)

    def add_sample(self, sample: Tally) -> None:
        """Count a sample that ended well."""
        self.add(sample.tokens, sample.version)
        self.samples += 1

    def keep(self) -> None:
        """The sample ended well."""
        self.failure = ""

    def fail(self, outcome: str) -> None:
        """The sample ended with ``outcome`` and is not kept."""
        self.failure = outcome

    def close(self) -> None:
        """Count no further reply: the tokens are settled."""
        self.is_open = False


_TALLY: ContextVar[Tally | None] = ContextVar("tally", default=None)
Counts = Mapping[tuple[int, str], StateCount]


def open_tally() -> Tally | None:
    """The tally of the sample or rollout around this call."""
    return _TALLY.get()


def end_group(state: str, rows: Sequence[RowCount] = ()) -> None:
    """Note the end of a group of the rollout around this call; outside of a rollout nothing."""
    if (tally := _TALLY.get()) is not None:
        tally.ends.append(GroupEnd(state, rows))


def rollout_ends(tally: Tally, fallback: str) -> Counts:
    """End states of the tokens of a rollout; without the end of a group ``fallback``.

    Posted rows count with their trained tokens. If they have more tokens than servers returned,
    the rest was supplied by the environment: ``generated + supplied`` is the sum of the states.
    """
    counts: dict[tuple[int, str], StateCount] = {}
    left, rows_ended = tally.tokens, 0

    def count(version: int, state: str, tokens: int, samples: int) -> None:
        before = counts.get((version, state), StateCount(0, 0))
        counts[version, state] = StateCount(before.tokens + tokens, before.samples + samples)

    posted = [row for end in tally.ends if end.state == POSTED for row in end.rows]
    for row in posted:
        count(row.version, POSTED, row.tokens, 1)
        if row.tokens > left:
            count(row.version, SUPPLIED, row.tokens - left, 0)
        left -= min(left, row.tokens)
        rows_ended += 1
    refused = [end for end in tally.ends if end.state != POSTED]
    for end in refused:
        for row in end.rows:
            count(row.version, end.state, min(left, row.tokens), 1)
            left -= min(left, row.tokens)
            rows_ended += 1
    # An end without rows has the state of the tokens that no row holds.
    state = next((end.state for end in refused if not end.rows), None)
    state = state or (refused[0].state if refused else fallback)
    samples = max(0, tally.samples - rows_ended)
    if posted and left:
        count(tally.version, MASKED_STATE, left, 0)
        left = 0
    if left or samples:
        count(tally.version, state, left, samples)
    return counts


class TokenAccount:
    """Counters of an environment process in a run, by version and end state.

    ``is_policy`` decides whether a server serves the trained model: the tokens of a
    judge or a teacher, end as ``helper``.
    """

    def __init__(self, is_policy: Callable[[Any], bool] = lambda server: True) -> None:
        self._is_policy = is_policy
        self.returned = 0  # tokens of all replies
        self._open: dict[Tally, None] = {}
        self._begin()

    def _begin(self) -> None:
        self.instance, self._sequence = uuid.uuid4().hex, 0
        self._counts: dict[tuple[int, str], StateCount] = {}
        self._run_id: str | None = None
        self._reported: tuple[dict[tuple[int, str], StateCount], float] | None = None

    # --- counting ---------------------------------------------------------------------

    @contextmanager
    def count_replies(self) -> Iterator[None]:
        """Count the replies of this block, also outside of samples."""
        with use_receiver(_Receiver(self)):
            yield

    @contextmanager
    def count_evaluation(self) -> Iterator[None]:
        """Count the replies of this block as evaluated."""
        if token_receiver.get() is None:
            yield
            return
        with use_receiver(_Receiver(self, outside=EVALUATED)):
            yield

    @contextmanager
    def rollout(self, fallback: str = drop_state(NO_GROUP)) -> Iterator[Tally]:
        """Count the replies of a rollout, settled at its end."""
        with self._open_tally() as tally:
            try:
                yield tally
            finally:
                self._settle(tally, rollout_ends(tally, fallback))

    @contextmanager
    def _open_tally(self) -> Iterator[Tally]:
        tally = Tally()
        self._open[tally] = None
        token = _TALLY.set(tally)
        try:
            with use_receiver(_Receiver(self, tally)):
                yield tally
        finally:
            _TALLY.reset(token)

    def receive(self, reply: ReturnedTokens, tally: Tally | None, outside: str) -> None:
        """Count a reply in ``tally``, or in an end state if it belongs to no open sample."""
        self.returned += reply.tokens
        if reply.discarded:
            self.settle(discard_state(reply.discarded), reply.version, reply.tokens, 0)
        elif reply.split != "train" and tally is None:
            self.settle(EVALUATED, reply.version, reply.tokens, 0)
        elif reply.server is not None and not self._is_policy(reply.server):
            self.settle(HELPER, UNKNOWN_VERSION, reply.tokens, 0)
        elif tally is None:
            self.settle(outside, reply.version, reply.tokens, 0)
        elif tally.is_open:
            tally.add(reply.tokens, reply.version)
        else:
            self.settle(discard_state(LATE), reply.version, reply.tokens, 0)

    @contextmanager
    def sample(self, rollout: Tally) -> Iterator[Tally]:
        """Count the replies of a sample, which joins ``rollout`` unless it failed."""
        with self._open_tally() as sample:
            try:
                yield sample
            finally:
                counts: Counts = {}
                if sample.failure:
                    state = drop_state(sample.failure)
                    counts = {(sample.version, state): StateCount(sample.tokens, 1)}
                else:
                    rollout.add_sample(sample)
                self._settle(sample, counts)

    def _settle(self, tally: Tally, counts: Counts) -> None:
        tally.close()
        self._open.pop(tally, None)
        for (version, state), (tokens, samples) in counts.items():
            self.settle(state, version, tokens, samples)

    def settle(self, state: str, version: int, tokens: int, samples: int) -> None:
        """Add tokens and samples to an end state."""
        before = self._counts.get((version, state), StateCount(0, 0))
        after = StateCount(before.tokens + tokens, before.samples + samples)
        self._counts[version, state] = after

    # --- the journal ------------------------------------------------------------------

    def journal(self, version: int, tokens: int, samples: int) -> None:
        """Move samples that are finished and not sent into ``journalled``; negative: out of it.

        For a journal of finished samples, which survives the process.
        """
        self.settle(JOURNALLED, version, tokens, samples)

    def take_over(self, version: int, tokens: int, samples: int) -> None:
        """Enter samples of the journal of an earlier life, whose last report holds these.

        The state ``recovered`` of this process cancels ``journalled`` of the earlier, so that
        the samples count once; they then end as samples of this process.
        """
        self.settle(RECOVERED, version, tokens, samples)

    # --- reports ----------------------------------------------------------------------

    def counts(self) -> dict[tuple[int, str], StateCount]:
        """Counters of all states, with the open tallies as in_flight."""
        counts = dict(self._counts)
        for tally in list(self._open):
            if tally.tokens or tally.samples:
                key = (tally.version, IN_FLIGHT)
                before = counts.get(key, StateCount(0, 0))
                counts[key] = StateCount(
                    before.tokens + tally.tokens, before.samples + tally.samples
                )
        return counts

    def report_again(self) -> None:
        """The last report did not arrive: the next is due at once."""
        self._reported = None

    def begin_run(self, run_id: str) -> None:
        """Count for a run from zero; the same run goes on."""
        if self._run_id not in (None, run_id):
            self._begin()
        self._run_id = run_id

    def report(
        self, who: EnvIdentifier, now: float, ended: bool = False
    ) -> AccountReport | None:
        """The next report; None if nothing changed, or the last was just sent."""
        counts = fold_versions(self.counts(), KEPT_VERSIONS)
        if self._reported is not None and not ended:
            before, at = self._reported
            # A report now and then shows that the tokens in flight are not lost.
            alive = any(state == IN_FLIGHT for _, state in counts)
            pause_s = REPEAT_EVERY_S if alive and counts == before else REPORT_EVERY_S
            if now - at < pause_s or (counts == before and not alive):
                return None
        if not counts:
            return None
        self._sequence += 1
        self._reported = counts, now
        return AccountReport(
            **who.model_dump(),
            instance=self.instance,
            sequence=self._sequence,
            ended=ended,
            counts=[
                AccountCount(version=version, state=state, tokens=tokens, samples=samples)
                for (version, state), (tokens, samples) in sorted(counts.items())
            ],
        )


def fold_versions(counts: Counts, kept: int) -> dict[tuple[int, str], StateCount]:
    """``counts`` with all versions older than the newest ``kept`` under OLDER_VERSIONS."""
    newest = sorted({version for version, _ in counts if version >= 0})[-kept:]
    tokens: Counter[tuple[int, str]] = Counter()
    samples: Counter[tuple[int, str]] = Counter()
    for (version, state), count in counts.items():
        if version >= 0 and version not in newest:
            version = OLDER_VERSIONS
        tokens[version, state] += count.tokens
        samples[version, state] += count.samples
    return {key: StateCount(tokens[key], samples[key]) for key in tokens}


@dataclass(frozen=True)
class _Receiver:
    """Receiver of the replies of a block, which names its account."""

    account: TokenAccount
    tally: Tally | None = None
    outside: str = HELPER

    def __call__(self, reply: ReturnedTokens) -> None:
        self.account.receive(reply, self.tally, self.outside)


@contextmanager
def sample_tally() -> Iterator[Tally]:
    """Count the replies of a sample apart from its rollout, until it is kept or failed.

    Outside of a rollout with an account nothing is counted.
    """
    receiver, rollout = token_receiver.get(), _TALLY.get()
    if rollout is None or not isinstance(receiver, _Receiver):
        yield Tally()
        return
    with receiver.account.sample(rollout) as sample:
        yield sample


def rows_of_columns(
    seq_lens: Sequence[int], trained_lengths: Sequence[int], versions: Any
) -> list[RowCount]:
    """A count per row; ``versions``: of all tokens, or None.

    The same numbers as the rollout API computes at the arrival of a group.
    """
    import numpy as np  # loads where it is used

    known = None if versions is None else np.asarray(versions)
    rows, at = [], 0
    for length, trained in zip(seq_lens, trained_lengths):
        version = UNKNOWN_VERSION
        if known is not None:
            own = known[at : at + length]
            sampled = own[own >= 0]
            version = int(sampled.min()) if len(sampled) else UNKNOWN_VERSION
        rows.append(RowCount(version, int(trained)))
        at += length
    return rows


def rows_of_group(group: Mapping[str, Any] | None) -> list[RowCount]:
    """A count per row of a group that is not sent, as far as it has the form of a group."""
    if group is None:
        return []
    try:
        lengths = [len(row) for row in group["tokens"]]
        trained = [sum(int(m) != MASKED for m in row) for row in group["masks"]]
        versions = group.get("versions")
        flat = None if versions is None else [v for row in versions for v in row]
        return rows_of_columns(lengths, trained, flat)
    except (AttributeError, KeyError, TypeError, ValueError):
        return []
