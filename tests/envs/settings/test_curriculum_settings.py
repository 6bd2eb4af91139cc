"""Settings of a curriculum: names, sections and their errors."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.envs.settings.curriculum_settings import CurriculumSettings
from atroposlib.errors import ConfigError


def test_a_name_is_a_sampler_and_further_keys_are_its_settings():
    named = CurriculumSettings.model_validate("pools")
    assert named.sampler.name == "pools" and named.sampler.settings == {} and named.observes
    whole = CurriculumSettings.model_validate(
        {"sampler": {"name": "pools", "explore": 0.2}, "gate": "band"}
    )
    assert whole.sampler.settings == {"explore": 0.2} and whole.gate.name == "band"


def test_the_default_draws_uniformly_and_observes_nothing():
    settings = BaseEnvConfig().curriculum
    assert settings.sampler.name == "uniform" and not settings.observes
    assert CurriculumSettings(gate="band").observes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("pool", "sampler 'pool' is unknown"),
        ({"gate": "bands"}, "gate 'bands' is unknown"),
        ({"sampler": {"explore": 1}}, "name"),
        ({"samplers": "pools"}, "samplers"),
    ],
)
def test_wrong_names_are_errors(given, message):
    with pytest.raises((ConfigError, ValidationError), match=message):
        CurriculumSettings.model_validate(given)
