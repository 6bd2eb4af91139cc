"""Fields with aliases and frozen fields, as settings of an environment."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, AliasPath, ConfigDict, Field

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.cli import read_settings
from atroposlib.envs.settings.aliases import flag_aliases, keys_of_aliases, with_field_names
from atroposlib.errors import ConfigError
from atroposlib.generation.configs import ServerBaseline


class AliasedConfig(BaseEnvConfig):
    a: int = Field(1, alias="aa")
    v: int = Field(1, validation_alias="vv")
    c: int = Field(1, validation_alias=AliasChoices("c1", "c2"))
    p: int = Field(1, validation_alias=AliasPath("px", "py"))
    f: int = Field(1, frozen=True)


class ByAliasOnly(BaseEnvConfig):
    model_config = ConfigDict(populate_by_name=False)
    a: int = Field(1, alias="aa")


class Frozen(BaseEnvConfig):
    model_config = ConfigDict(frozen=True)
    x: int = 1


def env_of(config: BaseEnvConfig) -> type[BaseEnv]:
    class AliasedEnv(BaseEnv):
        env_config_cls = type(config)

        @classmethod
        def config_init(cls) -> Any:
            return config, ServerBaseline()

    return AliasedEnv


CODE = {"aa": 5, "vv": 6, "c2": 7, "px": {"py": 8}, "f": 9}


def settings_of(words: list[str]) -> dict[str, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an alias is no unknown name
        env: Any = read_settings(env_of(AliasedConfig(**CODE)), ["serve", *words]).env
    return {name: getattr(env, name) for name in "avcpf"}


@pytest.mark.parametrize(
    ("flag", "name"),
    [("a", "a"), ("aa", "a"), ("v", "v"), ("vv", "v"), ("c", "c"), ("c1", "c"), ("c2", "c"),
     ("p", "p"), ("f", "f")],
)  # fmt: skip
def test_a_flag_by_name_or_alias_wins_over_the_code(flag: str, name: str) -> None:
    of_code = {"a": 5, "v": 6, "c": 7, "p": 8, "f": 9}
    assert settings_of([f"--env.{flag}", "3"]) == {**of_code, name: 3}


@pytest.mark.parametrize(
    "text",
    ["{a: 30, v: 31, c: 32, p: 33, f: 34}", "{aa: 30, vv: 31, c1: 32, px: {py: 33}, f: 34}"],
)
def test_a_file_has_names_or_aliases(text: str, tmp_path: Path) -> None:
    file = tmp_path / "env.yaml"
    file.write_text(f"strict: true\nenv: {text}\n", encoding="utf-8")
    settings = settings_of(["--config", str(file)])
    assert settings == {"a": 30, "v": 31, "c": 32, "p": 33, "f": 34}


@pytest.mark.parametrize("key", ["v", "vv"])
def test_a_rejected_value_is_named_by_its_place(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--env.v should be a whole number, not 'bad'$"):
        settings_of([f"--env.{key}", "bad"])
    file = tmp_path / "env.yaml"
    file.write_text(f"env:\n  group_size: 2\n  {key}: bad\n", encoding="utf-8")
    with pytest.raises(
        ConfigError, match=rf":3: env.{key} should be a whole number, not 'bad'$"
    ):
        settings_of(["--config", str(file)])


def test_a_class_that_refuses_names_is_refused_where_a_flag_would_be_lost() -> None:
    read_settings(env_of(ByAliasOnly()), ["serve"])
    with pytest.raises(ConfigError, match="--env.a: ByAliasOnly reads a by its alias only"):
        read_settings(env_of(ByAliasOnly()), ["serve", "--env.a", "3"])


def test_the_run_sets_sizes_in_a_frozen_configuration_and_the_authors_fields_stay() -> None:
    config = Frozen(x=4)
    config.total_steps, config.batch_size = 12, 8
    assert (config.total_steps, config.model_dump()["batch_size"]) == (12, 8)
    with pytest.raises(ValueError, match="frozen"):
        config.x = 5
    env: Any = read_settings(env_of(config), ["serve", "--env.x", "3"]).env
    assert env.x == 3


def test_the_own_name_wins_and_keys_of_paths_are_read() -> None:
    assert keys_of_aliases(AliasedConfig) == {"aa", "vv", "c1", "c2", "px"}
    assert flag_aliases(AliasedConfig, "env.")["env.c2"] == "env.c"
    values = {"aa": 1, "a": 2, "px": {"py": 3}, "group_size": 4}
    assert with_field_names(AliasedConfig, values) == {"a": 2, "group_size": 4, "p": 3}
