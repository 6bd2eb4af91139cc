"""Pauses between attempts, computed by hand."""

from __future__ import annotations

import pytest

from atroposlib.utils.backoff import Backoff, with_jitter

BACKOFF = Backoff(initial_s=0.2, max_s=5.0)


@pytest.mark.parametrize(
    ("failures", "pause_s"),
    [(-3, 0.0), (0, 0.0), (1, 0.2), (2, 0.4), (3, 0.8), (5, 3.2), (6, 5.0), (10_000, 5.0)],
)
def test_a_pause_doubles_up_to_its_maximum(failures, pause_s):
    assert BACKOFF.pause_s(failures) == pytest.approx(pause_s)


def test_jitter_takes_away_at_most_half_of_a_pause():
    assert with_jitter(4.0, lambda: 0.0) == 2.0
    assert with_jitter(4.0, lambda: 0.5) == 3.0
    assert all(2.0 <= with_jitter(4.0) <= 4.0 for _ in range(100))
