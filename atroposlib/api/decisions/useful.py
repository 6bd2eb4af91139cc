"""Useful share of the sampled tokens: of the last steps, and of the run before them. Pure.

    balance at each step --> StepTotals --> LastSteps --> UsefulShares

Counted are tokens whose end is known, so that a queue that fills is no loss. Tokens of evaluations
and of judges are sampled on purpose, and count neither as trained nor as lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from atroposlib.api.decisions.balance import MOVING
from atroposlib.wire.explore import RunAccount
from atroposlib.wire.status import EVALUATED, HELPER, TRAINED, drop_state

RECENT_STEPS = 8
RECENT_S = 60.0  # six reports of an environment, so that a late report moves no share much
USUAL_STEPS = 16  # steps before the last that make a usual share
MAX_LOSSES = 2  # states of lost tokens that are named
BEYOND = drop_state("beyond_the_archive")  # known of freed rows alone, at no certain time
_APART = (*MOVING, EVALUATED, HELPER, BEYOND)


class StepTotals(NamedTuple):
    """Tokens of samples by end state, from the beginning of the run up to a step."""

    at: float  # s
    steps: int  # batches trained
    settled: Mapping[str, int]

    @property
    def useful(self) -> float | None:
        """Trained share of the tokens; None without a token."""
        return _share(self.settled, TRAINED)


class UsefulShares(NamedTuple):
    """Trained shares of the tokens whose end is known."""

    usual: float  # before the last steps
    recent: float
    losses: Mapping[str, float]  # largest shares of the last steps, by end state


def step_totals(account: RunAccount, steps: int, at: float) -> StepTotals:
    settled: Counter[str] = Counter()
    for line in account.lines:
        if line.state not in _APART:
            settled[line.state] += line.tokens
    return StepTotals(at, steps, settled)


class LastSteps:
    """Totals of a run at its last steps, as far back as ``RECENT_STEPS`` and ``RECENT_S``."""

    def __init__(self) -> None:
        self._kept: deque[StepTotals] = deque()

    def add(self, now: StepTotals) -> UsefulShares | None:
        """The shares as of ``now``; None before there are enough steps."""
        while self._kept and self._kept[-1].steps > now.steps:
            self._kept.pop()  # a trainer that resumed took back steps
        while len(self._kept) > 1 and _is_long_before(self._kept[1], now):
            self._kept.popleft()
        shares = _shares_of(self._kept[0], now) if self._kept else None
        if not self._kept or self._kept[-1].steps < now.steps:
            self._kept.append(now)
        return shares


def _is_long_before(before: StepTotals, now: StepTotals) -> bool:
    return now.steps - before.steps >= RECENT_STEPS and now.at - before.at >= RECENT_S


def _shares_of(before: StepTotals, now: StepTotals) -> UsefulShares | None:
    if before.steps < USUAL_STEPS or not _is_long_before(before, now):
        return None
    grown = {
        state: max(0, tokens - before.settled.get(state, 0))
        for state, tokens in now.settled.items()
    }
    usual, recent = before.useful, _share(grown, TRAINED)
    if usual is None or recent is None:
        return None
    largest = sorted(grown, key=lambda state: -grown[state])
    lost = [state for state in largest if state != TRAINED and grown[state]][:MAX_LOSSES]
    return UsefulShares(usual, recent, {state: _share(grown, state) or 0.0 for state in lost})


def _share(tokens: Mapping[str, int], state: str) -> float | None:
    whole = sum(tokens.values())
    return tokens.get(state, 0) / whole if whole > 0 else None
