"""Settings of the trainer in the folder of a run."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.travel.recorded_settings import advantage_settings, trainer_files


def test_later_files_override_and_the_data_directory_stands_for_the_run(tmp_path):
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "wiring.yaml").write_text("advantage: raw\nreward_scale: 2\n")
    (tmp_path / "launch" / "trainer.yaml").write_text("advantage: rloo\nlr: 1e-3\n")
    for path in (tmp_path, tmp_path / "queue"):
        settings = advantage_settings(trainer_files(path))
        assert (settings.advantage, settings.reward_scale) == ("rloo", 2)


def test_a_run_without_files_has_the_defaults(tmp_path):
    assert trainer_files(tmp_path) == []
    assert advantage_settings([]).advantage == "grpo"


def test_an_invalid_value_names_its_file(tmp_path):
    (tmp_path / "a.yaml").write_text("reward_clip: -1\n")
    with pytest.raises(ConfigError, match="a.yaml"):
        advantage_settings([tmp_path / "a.yaml"])
