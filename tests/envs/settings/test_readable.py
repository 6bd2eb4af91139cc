"""Settings that a subclass defines in another form: the value is the author's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest
from pydantic import Field, SecretStr

from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.settings.config import BaseEnvConfig, EvalHandlingEnum
from atroposlib.envs.settings.readable import foreign_names, readable, recorded


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


class Recorded(BaseEnvConfig):
    scorer: Callable[..., Any] = len
    folder: Path = Path("data")
    tags: set[str] = {"a"}
    password: SecretStr = SecretStr("open-sesame")
    judges: list[APIServerConfig] = [APIServerConfig(model_name="judge", api_key="sk-1")]
    nested: dict[str, Any] = {"server": {"api_key": "sk-2", "model": object()}}
    hidden: object = Field(default_factory=object, exclude=True)


@pytest.mark.parametrize("view", [False, True])
def test_any_settings_have_a_record_without_keys(view):
    config = Changed() if view else Recorded(eval_handling=EvalHandlingEnum.NONE)
    document = recorded(readable(config))
    text = json.dumps(document)
    assert "sk-" not in text and "sesame" not in text
    assert document["group_size"] == 4
    if not view:
        assert (document["folder"], document["tags"]) == ("data", ["a"])
        assert (document["scorer"], document["eval_handling"]) == (repr(len), "NONE")
        assert document["judges"][0]["model_name"] == "judge" and "hidden" not in document
