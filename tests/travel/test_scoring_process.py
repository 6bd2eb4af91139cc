"""Outcomes of a single call, within its time."""

from __future__ import annotations

import asyncio
import signal

import pytest

from atroposlib.travel import scoring_process
from atroposlib.travel.scoring_process import (
    MISSING,
    RewardTimeout,
    alarm,
    async_outcome,
    plain_outcome,
)
from atroposlib.travel.stored_reward import load_stored_reward

REWARDS = "tests/travel/rewards.py"


@pytest.fixture(autouse=True)
def alarms():
    before = signal.signal(signal.SIGALRM, scoring_process._raise_timeout)
    yield
    signal.signal(signal.SIGALRM, before)


def test_an_alarm_is_off_after_its_block():
    with alarm(600):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_an_alarm_passes_a_handler_of_all_exceptions():
    reward = load_stored_reward(f"{REWARDS}:endless")
    with pytest.raises(RewardTimeout), alarm(0.01):
        reward.call({"completion": ""})


@pytest.mark.parametrize("name", ["reward", "awaited"])
def test_a_rollout_without_a_required_argument_fails_by_name(name):
    reward = load_stored_reward(f"{REWARDS}:{name}")
    values = {"completion": "4"}
    if reward.is_async:
        outcome = asyncio.run(async_outcome(reward, 3, values, 60))
    else:
        outcome = plain_outcome(reward, 3, values, 60)
    assert (outcome.place, outcome.score, outcome.kind) == (3, None, MISSING)
    assert outcome.text == "target"
