"""Lag of a server between the weights of the check before and those just published."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from example_trainer.weights.agreement import Agreement
from example_trainer.weights.lag import ScoredRows, ServerLag, lag_of
from tests.examples import examples

TOKENS = 200


def lag_of_row(new, before, theirs):
    """The lag by a single row of distinct tokens."""
    new, before, theirs = ([list(map(float, side))] for side in (new, before, theirs))
    sequence = list(range(len(before[0]) + 1))
    return lag_of(ScoredRows([sequence], before), new, theirs)


def test_the_score_is_the_one_by_hand():
    """Of three tokens one lies half way, one has the logprob of now, one is beyond that of then."""
    before = ScoredRows([[1, 2, 3], [4, 5]], [[-2.0, -2.0], [-2.0]])
    lag = lag_of(before, [[-1.0, -1.0], [-1.0]], [[-1.5, -1.0], [-3.0]])
    ratios = [0.0, -1 / 2, (4 - 1) / (4 + 1 + 1)]
    score = sum(ratios) / math.sqrt(sum(r * r for r in ratios))
    assert lag == ServerLag(tokens=3, older=1, score=pytest.approx(score))


@pytest.mark.parametrize(("tokens", "score"), [(4, 2.0), (100, 10.0)])
def test_exact_weights_of_then_or_of_now_give_the_root_of_the_tokens(tokens, score):
    now, then = -np.arange(tokens), -np.arange(tokens) - 1e-5
    assert lag_of_row(now, then, then).score == pytest.approx(score)
    assert lag_of_row(now, then, now).score == pytest.approx(-score)


@pytest.mark.parametrize(
    ("new", "before", "theirs"),
    [
        ([], [], []),
        ([0.0] * TOKENS, [0.0] * TOKENS, [1.0] * TOKENS),  # nothing moved
        ([0.0] * TOKENS, [1.0] * TOKENS, [1.0] * 3),  # the server left tokens out
        ([0.0] * TOKENS, [1.0] * TOKENS, [math.nan] * TOKENS),
    ],
)
def test_tokens_that_cannot_show_a_lag_give_none(new, before, theirs):
    assert lag_of_row(new, before, theirs) == lag_of(ScoredRows(), [], []) == ServerLag()


def test_a_prefix_of_several_rows_counts_once():
    sequences = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4]]
    before = ScoredRows(sequences, [[-1.0, -1.0, -1.0]] * 3)
    assert lag_of(before, [[-2.0, -2.0, -2.0]] * 3, before.logprobs).tokens == 4


FLOATS = st.floats(-50, 0)


@examples(200)
@given(st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=9))
def test_exchanging_then_and_now_turns_the_score_around(tokens):
    new, before, theirs = zip(*tokens)
    lag, turned = lag_of_row(new, before, theirs), lag_of_row(before, new, theirs)
    assert lag.score == pytest.approx(-turned.score)
    assert abs(lag.score) <= math.sqrt(lag.tokens) + 1e-9
    assert lag.older + turned.older <= lag.tokens


def lags(drawn, moves, is_behind, checks):
    """Lags of a server, where each side rounds by 0.03 nats, and a token in twenty by 0.3."""
    for _ in range(checks):
        size = 0.03 * np.where(drawn.random(TOKENS) < 0.05, 10, 1)
        then, now = drawn.normal(size=(2, TOKENS)) * size * moves / math.sqrt(2)
        before, new, theirs = drawn.normal(size=(3, TOKENS)) * size
        theirs += then if is_behind else now
        yield lag_of_row(now + new, then + before, theirs)


@pytest.mark.parametrize("moves", [3.0, 30.0])
def test_a_server_behind_is_refused_by_the_second_check(moves):
    """A step moves a token by three times its rounding: 0.1 nats in the median."""
    for seed in range(100):
        agreement = Agreement.of("bfloat16")
        behind = lags(np.random.default_rng(seed), moves, True, 2)
        assert not all([agreement.judge_lag(lag, "server") for lag in behind])


def test_a_server_behind_is_refused_in_some_checks_where_a_step_moves_no_more_than_rounding():
    for seed in range(20):
        agreement = Agreement.of("bfloat16")
        behind = lags(np.random.default_rng(seed), 1.0, True, 40)
        assert not all([agreement.judge_lag(lag, "server") for lag in behind])


@pytest.mark.parametrize("moves", [0.0, 0.1, 1.0, 30.0])
def test_a_correct_server_is_accepted_however_little_a_step_moves(moves):
    agreement = Agreement.of("bfloat16")
    for lag in lags(np.random.default_rng(0), moves, False, 5000):
        assert agreement.judge_lag(lag, "server")


def test_evidence_adds_up_for_each_server_and_falls_back():
    agreement = Agreement.of("float32")
    for score in (3.0, 3.0, 3.0, -4.0, 3.0, 1.0, 3.0, 3.0):
        assert agreement.judge_lag(ServerLag(100, 50, score), "a")
        assert agreement.judge_lag(ServerLag(), "b")
    assert agreement.evidence == {"a": pytest.approx(7.0), "b": 0.0}
    assert not agreement.judge_lag(ServerLag(100, 50, 3.0), "a")
    assert not Agreement.of("float32").judge_lag(ServerLag(100, 100, 10.0), "a")  # at once


def test_the_first_rows_keep_their_logprobs():
    rows = ScoredRows([[1, 2], [3, 4], [5, 6]], [[-1.0], [-2.0], [-3.0]])
    assert rows.first(2) == ScoredRows([[1, 2], [3, 4]], [[-1.0], [-2.0]])
