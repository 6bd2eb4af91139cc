"""Tests that a run killed at any point and restarted equals the uninterrupted run.

`make torture TORTURE=trainer` does it at random moments, many times.
"""

from __future__ import annotations

import pytest

from tests.trainer.checkpoint import killed_trainer as killed

pytestmark = pytest.mark.alone
STEPS = 6


def test_trainer_killed_at_any_point_ends_with_the_uninterrupted_result(tmp_path, model_dir):
    with killed.world(tmp_path / "straight", model_dir, STEPS) as straight:
        straight.start()
        straight.finish()
        expected = killed.outcome(straight)

    with killed.world(tmp_path / "broken", model_dir, STEPS) as broken:
        hits = {}
        for n, (name, moment) in enumerate(killed.MOMENTS.items()):
            broken.start()
            hits[name] = broken.kill_when(killed.after(n, moment))
            killed.every_checkpoint_loads(broken)
        broken.start()
        broken.finish()
        assert killed.every_checkpoint_loads(broken) >= 4
        actual = killed.outcome(broken)
    assert hits == dict.fromkeys(killed.MOMENTS, True)
    assert actual.pop("lines") == expected.pop("lines")
    assert actual == expected
