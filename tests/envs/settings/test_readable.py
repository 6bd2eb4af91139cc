"""Settings that a subclass defines in another form: the value is the author's."""

from __future__ import annotations

from typing import Optional

import pytest

from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.envs.settings.readable import foreign_names, readable


class Changed(BaseEnvConfig):
    api_timeout_s: Optional[str] = "soon"
    seed: float = 3.0
    max_item_retries: list[int] = []


class Added(BaseEnvConfig):
    temperature: float = 1.0
    total_steps: int = 7


def test_settings_of_the_same_types_are_read_as_they_are():
    config = Added()
    assert readable(config) is config and foreign_names(Added) == frozenset()


def test_a_value_that_is_no_value_of_the_setting_is_read_as_its_default():
    config = Changed()
    view = readable(config)
    assert (view.api_timeout_s, view.max_item_retries) == (1200.0, 2)
    assert view.seed == 3  # valid for the setting
    assert (config.api_timeout_s, config.max_item_retries) == ("soon", [])
    assert view.tracker_names == BaseEnvConfig().tracker_names


def test_all_else_reaches_the_settings():
    config = Changed()
    view = readable(config)
    view.batch_size = 8
    assert config.batch_size == 8 and view.model_dump()["seed"] == 3.0
    with pytest.raises(AttributeError):
        view.absent
