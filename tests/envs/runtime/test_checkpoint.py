"""Checkpoints of environment state."""

from __future__ import annotations

from atroposlib.envs.runtime import checkpoint


def test_a_restarted_environment_finds_its_newest_state_under_any_of_its_names(tmp_path):
    root = str(tmp_path)
    checkpoint.save(root, "toy_0", 5, {"iter": 50})
    checkpoint.save(root, "toy_0", 10, {"iter": 100})
    checkpoint.save(root, "toy_0", 20, {"iter": 200})
    checkpoint.save(root, "toyota_0", 15, {"iter": -1})
    assert checkpoint.newest(root, "toy_1", 17) == {"iter": 100}
    assert checkpoint.newest(root, "toy_1", 3) is None
    assert checkpoint.newest(str(tmp_path / "absent"), "toy", 3) is None


def test_a_name_from_the_api_cannot_lead_out_of_the_directory(tmp_path):
    path = checkpoint.save(str(tmp_path / "in"), "../../out", 1, {})
    assert (tmp_path / "in") in path.resolve().parents


def test_a_checkpoint_sets_known_state_and_nothing_else():
    class Thing:
        def __init__(self):
            self.iter, self.config = 0, object()

        def method(self): ...

    thing = Thing()
    config = thing.config
    data = {"iter": 3, "config": "x", "method": 1, "_private": 1, "new": 1}
    checkpoint.restore(thing, data)
    assert vars(thing) == {"iter": 3, "config": config}
