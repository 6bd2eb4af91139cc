"""Whole runs: settings of their processes, without running anything."""

from __future__ import annotations

from wholerun import Setup, draft

from example_trainer.launch.plan import trainer_settings
from example_trainer.quickstart.plan import launch_plan
from example_trainer.quickstart.recipes import COPY


def test_settings_of_a_setup_replace_those_of_the_recipe(tmp_path):
    trainer = {"loss": "ppo", "lr": 0.5, "check_every": 1}
    start = draft(Setup(tmp_path, COPY, "tiny", 3, trainer=trainer, cores=2))
    _, cfg = trainer_settings(launch_plan(start))
    assert (cfg.loss, cfg.lr, cfg.check_every, cfg.seed) == ("ppo", 0.5, 1, 3)
    assert cfg.training_steps == COPY.steps and start.cores == 2
    assert start.dtype == cfg.dtype == "float32"
