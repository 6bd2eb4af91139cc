"""Tests that a run killed at any point and restarted equals the uninterrupted run.

`make torture TORTURE=trainer` does it at random moments, many times.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from atroposlib.api.decisions import run_state
from tests.trainer.checkpoint import killed_trainer as killed

pytestmark = pytest.mark.slow
STEPS = 6


def test_trainer_killed_at_any_point_ends_with_the_uninterrupted_result(tmp_path, model_dir):
    often = {"recover_every_steps": 1}
    with killed.world(tmp_path / "straight", model_dir, STEPS, **often) as straight:
        straight.start()
        straight.finish()
        expected = killed.outcome(straight)

    # take_over: no start waits for the end of the killed trainer's heartbeats.
    often["take_over"] = True
    with killed.world(tmp_path / "broken", model_dir, STEPS, **often) as broken:
        for n, name in enumerate(killed.SEAMS):
            broken.start(dies=(name, n))
            assert broken.died(), f"{name}: {broken.output[-4000:]}"
            killed.every_checkpoint_loads(broken)
        broken.start()
        broken.finish()
        assert killed.every_checkpoint_loads(broken) >= 4
        actual = killed.outcome(broken)
    assert actual.pop("lines") == expected.pop("lines")
    assert actual == expected


def test_a_second_trainer_ends_with_the_name_of_the_first_which_goes_on(
    tmp_path, model_dir, monkeypatch
):
    # On a loaded machine heartbeats of a live trainer come late.
    monkeypatch.setattr(run_state, "TRAINER_SILENT_S", killed.LIFE_S)
    more = {"run_name": "one", "training_steps": 3}
    with killed.world(tmp_path / "first", model_dir, 1, **more) as first:
        second = replace(first, folder=tmp_path / "second", process=None)
        second.folder.mkdir()
        first.start()
        killed.until(lambda: first.steps_logged() >= 1)
        second.start()
        assert second.process is not None
        second.process.join(killed.LIFE_S)
        assert second.process.exitcode == 1
        assert "RunTaken: the trainer one (host" in second.output, second.output[-2000:]
        killed.post_groups(first, [1])
        killed.until(lambda: first.steps_logged() == 2)
