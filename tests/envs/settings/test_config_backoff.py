"""Pauses between rollouts while all of them fail."""

from __future__ import annotations

import pytest

from atroposlib.envs.settings.config import FAILING_BACKOFF


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(0, 0), (8, 0), (9, 0.2), (10, 0.4), (10_000, 10)]
)
def test_rollouts_pause_only_after_every_worker_failed_and_within_a_bound(failures, pause_s):
    workers = 8
    assert FAILING_BACKOFF.pause_s(failures - workers) == pytest.approx(pause_s)
