"""Scoring in processes: real processes, which raise, stand still and die."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.travel import scoring
from atroposlib.travel.scoring import ScoringProcesses

REWARDS = "tests/travel/rewards.py"
REPLIES = ["4", "7", "8", "4"]


def outcomes_of(name, jobs=1, replies=REPLIES, timeout_s=60.0):
    work = [
        (place, {"completion": reply, "target": 4, "reward": 0.25})
        for place, reply in enumerate(replies)
    ]
    with ScoringProcesses(f"{REWARDS}:{name}", jobs, timeout_s) as processes:
        pairs = sorted(processes.scores(work), key=lambda pair: pair[0])
    assert [place for place, _ in pairs] == [*range(len(replies))]
    return [outcome for _, outcome in pairs]


@pytest.mark.parametrize("name", ["reward", "awaited"])
def test_each_rollout_gets_its_score_from_several_processes(name):
    replies = ["4", "5"] * 200
    scores = [outcome.score for outcome in outcomes_of(name, 2, replies)]
    extra = 0.5 if name == "awaited" else 0.0
    assert scores == [1.0 + extra, extra] * 200


def test_failures_have_a_kind_and_no_score():
    outcomes = outcomes_of("uncertain")
    assert [outcome.score for outcome in outcomes] == [0.25, None, None, 0.25]
    assert [outcome.kind for outcome in outcomes] == ["", "error: ValueError", "no score", ""]
    assert "seven" in outcomes[1].text


@pytest.mark.parametrize("name", ["endless", "endless_async"])
def test_a_reward_without_end_is_cut_off_and_counted(name):
    outcomes = outcomes_of(name, replies=["4", "4"], timeout_s=0.05)
    assert [(outcome.score, outcome.kind) for outcome in outcomes] == [(None, "timeout")] * 2


def test_a_process_that_cannot_be_interrupted_is_replaced(monkeypatch):
    monkeypatch.setattr(scoring, "GRACE_S", -1e6)  # a chunk is late at once

    class Silent(scoring.ScoringJob):
        def outcomes(self):
            return iter(())

    monkeypatch.setattr(scoring, "ScoringJob", Silent)
    outcomes = outcomes_of("reward", replies=["4", "4"])
    assert [outcome.kind for outcome in outcomes] == ["timeout"] * 2


def test_a_dead_process_costs_the_rollout_that_it_worked_on():
    outcomes = outcomes_of("dies")
    assert [outcome.kind for outcome in outcomes] == ["", "crashed", "", ""]
    assert [outcome.score for outcome in outcomes] == [1.0, None, 1.0, 1.0]


def test_a_reward_that_ends_process_after_process_is_given_up(monkeypatch):
    monkeypatch.setattr(scoring, "MAX_REPLACED", 1)
    with pytest.raises(ConfigError, match="processes died or stood still"):
        outcomes_of("dies", replies=["7"] * 3)


def test_a_reward_that_cannot_be_loaded_is_an_error_of_its_process():
    with pytest.raises(ConfigError, match="no 'missing'"):
        outcomes_of("missing")
