"""Samplers and gates by name, with their settings."""

from __future__ import annotations

import pytest

from atroposlib.envs.curriculum.pools import DifficultyPools
from atroposlib.envs.curriculum.registry import (
    GATE_CLASSES,
    SAMPLER_CLASSES,
    make_gate,
    make_sampler,
)
from atroposlib.envs.settings.curriculum_settings import GATES, SAMPLERS, CurriculumPart
from atroposlib.errors import ConfigError, RolloutError
from tests.envs.curriculum.conftest import rows

OWN = """
from atroposlib.envs.curriculum import TaskSampler

class Last(TaskSampler):
    def __init__(self, tasks, *, seed=0, back=1):
        super().__init__(tasks, seed=seed)
        self.back = back
        assert back > 0

    def next(self):
        return self.tasks[-self.back]

class Other:
    def __init__(self, tasks, *, seed=0):
        pass
"""


def part(name, **settings):
    return CurriculumPart(name=name, **settings)


def test_the_names_of_the_settings_are_those_of_the_classes():
    assert set(SAMPLERS) == set(SAMPLER_CLASSES) and set(GATES) == set(GATE_CLASSES)


def test_settings_reach_the_class():
    sampler = make_sampler(part("pools", explore=0.5), rows(2), seed=3, env="toy")
    assert isinstance(sampler, DifficultyPools) and sampler.seed == 3
    assert (
        make_gate(part("band", low=0.4), env="toy").reason == "success outside of 0.4 to 0.8"
    )


def test_an_unknown_setting_is_an_error_that_names_the_nearest_one():
    with pytest.raises(
        ConfigError, match="toy: curriculum, sampler pools: no setting 'explor'"
    ):
        make_sampler(part("pools", explor=0.5), rows(2), seed=0, env="toy")
    with pytest.raises(ConfigError, match="weighted: missing .*'field'"):
        make_sampler(part("weighted"), rows(2), seed=0, env="toy")


def test_a_sampler_of_a_file_gets_its_settings(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    sampler = make_sampler(part(f"{path}:Last", back=2), rows(5), seed=0, env="toy")
    assert sampler.draw().number == 3
    with pytest.raises(ConfigError, match="not a subclass of .*TaskSampler"):
        make_sampler(part(f"{path}:Other"), rows(5), seed=0, env="toy")
    with pytest.raises(RolloutError, match="own.py"):
        make_sampler(part(f"{path}:Last", back=0), rows(5), seed=0, env="toy")
