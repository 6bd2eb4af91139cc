from __future__ import annotations

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
