"""The actor of a process."""

from __future__ import annotations

from example_trainer.launch.ray_actor import ProcessActor


def test_a_call_that_ray_repeats_returns_the_end_of_the_same_process(tmp_path):
    actor = ProcessActor("trainer", (), {}, tmp_path, tmp_path)
    actor.codes[1] = 75
    assert actor.run(1, (), None) == 75
