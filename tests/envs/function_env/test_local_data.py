"""Paths of local data are known from the definition and the settings."""

from __future__ import annotations

import pytest

from atroposlib.envs import environment
from atroposlib.envs.function_env.data import DATA_OPTION
from atroposlib.envs.function_env.local_data import FunctionRuntime
from atroposlib.errors import DatasetUnavailable


def made(dataset, eval_dataset=None, **settings):
    @environment(dataset, eval_dataset=eval_dataset, settings=settings)
    async def toy(task, model):
        return 1.0

    return toy, toy.config_init()[0]


def test_files_are_local_and_lists_and_hub_names_are_not(tmp_path):
    env_cls, config = made(tmp_path / "rows.jsonl", "hub:owner/name:subset/test")
    paths = FunctionRuntime.local_data(env_cls, config)
    assert paths == {tmp_path / "rows.jsonl": DATA_OPTION}
    env_cls, config = made([1], dataset_path=str(tmp_path))
    paths = FunctionRuntime.local_data(env_cls, config)
    assert paths == {str(tmp_path): "--env.dataset_path"}
    FunctionRuntime.require_data(env_cls, config)


def test_an_absent_file_is_named_with_its_option(tmp_path):
    env_cls, config = made(str(tmp_path / "absent.jsonl"))
    with pytest.raises(DatasetUnavailable, match="absent.jsonl does not exist"):
        FunctionRuntime.require_data(env_cls, config)
    env_cls, config = made([1], dataset_path=str(tmp_path / "absent"))
    with pytest.raises(DatasetUnavailable, match="--env.dataset_path"):
        FunctionRuntime.require_data(env_cls, config)
