"""Pauses between attempts, computed by hand."""

from __future__ import annotations

import time

import pytest

from atroposlib.utils.backoff import Backoff, Retrier, jittered

BACKOFF = Backoff(initial_s=0.2, max_s=5.0)


@pytest.mark.parametrize(
    ("failures", "pause_s"),
    [(-3, 0.0), (0, 0.0), (1, 0.2), (2, 0.4), (3, 0.8), (5, 3.2), (6, 5.0), (10_000, 5.0)],
)
def test_a_pause_doubles_up_to_its_maximum(failures, pause_s):
    assert BACKOFF.pause_s(failures) == pytest.approx(pause_s)


def test_jitter_takes_away_at_most_half_of_a_pause():
    assert jittered(4.0, lambda: 0.0) == 2.0
    assert jittered(4.0, lambda: 0.5) == 3.0
    assert all(2.0 <= jittered(4.0) <= 4.0 for _ in range(100))


def test_pauses_grow_until_a_reset():
    retrier = Retrier(BACKOFF)
    pauses = [retrier.pause_s(jitter=False) for _ in range(3)]
    retrier.reset()
    assert pauses + [retrier.pause_s(jitter=False)] == pytest.approx([0.2, 0.4, 0.8, 0.2])


def test_no_pause_goes_past_the_deadline(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    retrier = Retrier(BACKOFF, timeout_s=10.0)
    now[0] += 9.9
    assert not retrier.expired
    assert retrier.pause_s(jitter=False) == pytest.approx(0.1)
    now[0] += 0.2
    assert retrier.expired
    assert retrier.pause_s(jitter=False) == 0.0
    retrier.reset()
    assert not retrier.expired


def test_a_pause_named_by_the_server_is_kept_without_jitter():
    assert Retrier(BACKOFF).pause_s(at_least_s=30.0) == 30.0
    assert Retrier(BACKOFF, timeout_s=7.0).pause_s(at_least_s=30.0) == pytest.approx(7.0)
    assert 0.1 <= Retrier(BACKOFF).pause_s(at_least_s=0.05) <= 0.2
