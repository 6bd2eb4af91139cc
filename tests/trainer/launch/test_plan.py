from __future__ import annotations

from pathlib import Path

from example_trainer.launch.plan import read_plan, trainer_settings
from tests.trainer.launch.launch_plans import GSM8K, plan


def test_overrides_reach_the_launcher_or_the_trainer(tmp_path):
    found = plan(
        "api.port=8001", "lr=3e-6", "actor.eps_clip=0.1", "trainer.nproc=2", out=tmp_path
    )
    assert (found.api.port, found.trainer.nproc, found.environments[0].count) == (8001, 2, 1)
    _, cfg = trainer_settings(found)
    assert (cfg.lr, cfg.clip_eps, cfg.clip_eps_high) == (3e-6, 0.1, 0.28)
    assert cfg.save_path == str(tmp_path / "checkpoints")


def test_a_later_file_is_put_over_an_earlier_one(tmp_path):
    more = tmp_path / "more.yaml"
    more.write_text("inference: {count: 3}\ntrainer: {settings: {actor.optimizer.lr: 1}}\n")
    found = read_plan([GSM8K, str(more)])
    assert (found.inference.count, found.inference.engine) == (3, "auto")
    _, cfg = trainer_settings(found)
    assert (cfg.lr, cfg.warmup_steps) == (1.0, 10)


def test_evaluations_beyond_the_last_step_are_notes_under_their_place(tmp_path: Path) -> None:
    planned = plan(
        "trainer.settings.training_steps=4",
        "evaluation.every=5",
        "trainer.settings.eval_command=[ls]",
        "environments.0.config.env.steps_per_eval=9",
        out=tmp_path,
    )
    notes = "\n".join(trainer_settings(planned)[0].notes)
    assert "evaluation.every: 5 is more than the 4 steps of the run: no evaluation" in notes
    assert "steps_per_eval: 9 is more than the 4 steps of the run" in notes
