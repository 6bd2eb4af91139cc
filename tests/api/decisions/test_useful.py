"""Useful shares of the last steps and of the run before, by hand-computed totals."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from atroposlib.api.decisions.useful import (
    RECENT_STEPS,
    USUAL_STEPS,
    LastSteps,
    StepTotals,
    UsefulShares,
    step_totals,
)
from atroposlib.wire.explore import AccountLine, RunAccount


def account_of(**states):
    lines = [AccountLine(state=state, tokens=n, samples=1) for state, n in states.items()]
    figures = {"generated": 100, "supplied": 0, "trained": states.get("trained", 0)}
    more = {"useful": None, "moving": 0, "unknown": 0, "processes": 1}
    return RunAccount(**figures, **more, lines=lines)


def run_of(*parts, seconds=10.0):
    """The shares after each step; a part is (steps, trained, dropped and others of a step)."""
    last_steps, shares, totals, step = LastSteps(), [], {"trained": 0}, 0
    for steps, tokens in parts:
        for _ in range(steps):
            step += 1
            totals = {key: totals.get(key, 0) + tokens.get(key, 0) for key in totals | tokens}
            shares.append(last_steps.add(StepTotals(step * seconds, step, totals)))
    return shares


def test_tokens_under_way_of_evaluations_and_of_judges_are_left_out():
    states = {"trained": 6, "masked": 2, "in_flight": 50, "queued": 9, "leased": 9}
    apart = {"journalled": 3, "evaluated": 70, "helper": 30, "dropped/beyond_the_archive": 9}
    totals = step_totals(account_of(**states, **apart), 4, 10.0)
    assert totals.settled == {"trained": 6, "masked": 2} and totals.useful == 0.75


def test_there_are_no_shares_before_the_usual_and_the_recent_steps():
    shares = run_of((30, {"trained": 4}))
    first = next(step for step, share in enumerate(shares, 1) if share is not None)
    assert first == USUAL_STEPS + RECENT_STEPS
    assert shares[-1] == UsefulShares(1.0, 1.0, {})


def test_the_losses_of_the_last_steps_are_named_with_their_shares():
    shares = run_of(
        (16, {"trained": 6, "masked": 4}), (8, {"trained": 3, "masked": 4, "dropped/a": 3})
    )
    assert shares[-1] == UsefulShares(0.6, 0.3, {"masked": 0.4, "dropped/a": 0.3})


def test_steps_of_a_second_are_compared_over_a_minute():
    shares = run_of((100, {"trained": 4}), (60, {"trained": 1, "masked": 3}), seconds=1.0)
    assert shares[110].recent == pytest.approx((49 * 4 + 11) / (60 * 4))
    assert shares[-1] == UsefulShares(1.0, 0.25, {"masked": 0.75})


def test_a_trainer_that_resumes_takes_back_its_steps():
    last_steps = LastSteps()
    for step in range(1, 41):
        last_steps.add(StepTotals(10.0 * step, step, {"trained": 4 * step}))
    assert last_steps.add(StepTotals(410.0, 10, {"trained": 40})) is None
    assert last_steps.add(StepTotals(420.0, 11, {"trained": 44})) is None


def test_a_resumed_trainer_has_shares_again_after_the_recent_steps():
    last_steps = LastSteps()
    resumed = [*range(1, 41), *range(20, 41)]
    shares = [
        last_steps.add(StepTotals(10.0 * at, step, {"trained": 4 * step}))
        for at, step in enumerate(resumed)
    ]
    assert shares[40] is None and shares[-1] == UsefulShares(1.0, 1.0, {})


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 40), st.integers(0, 2)),
        max_size=60,
    )
)
def test_shares_are_shares_and_what_is_kept_is_bounded(steps):
    last_steps, totals, at, no = LastSteps(), {"trained": 0, "masked": 0}, 0.0, 0
    for trained, masked, seconds, grown in steps:
        at, no = at + seconds, no + grown
        totals = {
            "trained": totals["trained"] + trained,
            "masked": totals["masked"] + masked,
        }
        shares = last_steps.add(StepTotals(at, no, totals))
        if shares is not None:
            assert 0 <= shares.usual <= 1 and no >= USUAL_STEPS + RECENT_STEPS
            assert shares.recent + sum(shares.losses.values()) == pytest.approx(1)


def test_a_run_without_a_trained_token_has_no_usual_share():
    last_steps = LastSteps()
    empty: Mapping[str, int] = {}
    assert [last_steps.add(StepTotals(10.0 * s, s, empty)) for s in range(40)] == [None] * 40
