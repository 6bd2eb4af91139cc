"""One merger for three subcommands: CLI > YAML > config_init > class defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, IntEnum
from typing import Any, Literal, Union

import pytest
from pydantic import BaseModel, ConfigDict, computed_field, field_validator

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ServerBaseline
from atroposlib.envs.cli import main, read_settings
from atroposlib.envs.runtime.creation import make_env
from atroposlib.envs.settings.config import EvalHandlingEnum
from atroposlib.envs.settings.flags import GROUPS
from atroposlib.errors import ConfigError


class Config(BaseEnvConfig):
    stop_words: list[str] = []
    weights: dict[str, float] | None = None
    lower: float = 0.0


class Env(BaseEnv):
    name = "mine"
    env_config_cls = Config
    servers = APIServerConfig(base_url="http://init:1/v1", api_key="k", model_name="init")

    @classmethod
    def config_init(cls):
        return Config(group_size=6, use_wandb=False), cls.servers

    async def setup(self): ...

    async def get_next_item(self): ...

    async def evaluate(self, *args, **kwargs): ...


def read(*words, servers=Env.servers, tmp_path=None, yaml=None):
    env_cls = type("EnvUnderTest", (Env,), {"servers": servers})
    if yaml is not None:
        path = tmp_path / "settings.yaml"
        path.write_text(yaml)
        words = (*words, "--config", str(path))
    return read_settings(env_cls, list(words))


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Size(Enum):
    SMALL = 0.5
    LARGE = 2


class Retriever(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["bm25", "dense"] = "bm25"
    top_k: int = 5

    @computed_field
    @property
    def label(self) -> str:
        return f"{self.kind}/{self.top_k}"


class OddConfig(BaseEnvConfig):
    model_config = ConfigDict(extra="forbid")
    level: Level = Level.LOW
    size: Size = Size.SMALL
    digits: Literal[1, 2, "many"] = 1
    mode: Literal[True, False, "auto"] = "auto"
    free: Union[Literal[7], str] = "x"
    span: tuple[int, int] = (1, 3)
    wait: timedelta = timedelta(seconds=5)
    retriever: Retriever = Retriever()
    sources: list[Retriever] = []
    scorer: Callable[[str], int] = len

    @field_validator("span", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return value.split(":") if isinstance(value, str) else value

    @computed_field
    @property
    def width(self) -> int:
        return self.span[1] - self.span[0]


class OddEnv(Env):
    env_config_cls = OddConfig

    @classmethod
    def config_init(cls):
        return OddConfig(retriever=Retriever(kind="dense"), sources=[Retriever()]), cls.servers


MODES = ["serve", "process", "evaluate"]


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("level", "2", Level.HIGH),
        ("size", "0.5", Size.SMALL),
        ("size", "2", Size.LARGE),
        ("digits", "2", 2),
        ("digits", "many", "many"),
        ("mode", "true", True),
        ("mode", "False", False),
        ("mode", "auto", "auto"),
        ("free", "7", "7"),  # the field takes text
        ("span", "2:9", (2, 9)),
        ("span", "[2, 9]", (2, 9)),
        ("wait", "PT7S", timedelta(seconds=7)),
        ("retriever", '{"top_k": 2}', Retriever(kind="dense", top_k=2)),
        ("sources", '[{"top_k": 2}]', [Retriever(top_k=2)]),
    ],
)
def test_a_field_of_any_type_has_a_flag(field, text, value):
    env = read_settings(OddEnv, ["process", f"--env.{field}", text]).env
    assert getattr(env, field) == value and type(getattr(env, field)) is type(value)
    assert env.scorer is len and env.retriever.kind == "dense"


def test_a_choice_that_is_none_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match="--env.digits should be 1, 2 or 'many', not '3'"):
        read_settings(OddEnv, ["process", "--env.digits", "3"])


@pytest.mark.parametrize("mode", MODES)
def test_flags_win_over_yaml_over_config_init_over_defaults(mode, tmp_path):
    yaml = "env:\n  group_size: 10\n  total_steps: 77\nopenai:\n  model_name: yaml\n  timeout: 5\n"
    settings = read(
        mode, "--env.group_size", "12", "--openai.model_name=cli", tmp_path=tmp_path, yaml=yaml
    )
    assert settings.env.group_size == 12
    assert settings.env.total_steps == 77
    assert settings.env.use_wandb is False
    assert settings.env.max_eval_workers == 16
    server = settings.servers
    assert (server.model_name, server.timeout) == ("cli", 5)
    assert server.base_url == "http://init:1/v1"


class NestedConfig(BaseEnvConfig):
    weights: dict[str, float] = {"a": 1.0, "b": 2.0}
    options: dict[str, Any] = {"search": {"depth": 1, "width": 2}}
    retriever: Retriever = Retriever(kind="dense", top_k=3)
    extra: dict[str, int] | None = None


class NestedEnv(Env):
    env_config_cls = NestedConfig

    @classmethod
    def config_init(cls):
        return cls.env_config_cls(), cls.servers


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["file", "flag"])
def test_a_mapping_replaces_only_the_keys_that_it_has_of_a_default_of_the_class(
    mode, source, tmp_path
):
    given = {
        "weights": {"b": 5.0},
        "options": {"search": {"depth": 4}},
        "retriever": {"top_k": 9},
        "extra": {"x": 1},
    }
    path = tmp_path / "settings.yaml"
    path.write_text(json.dumps({"env": given if source == "file" else {}}))
    flags = [f"--env.{name}={json.dumps(value)}" for name, value in given.items()]
    words = [mode, "--config", str(path), *(flags if source == "flag" else ())]
    env = read_settings(NestedEnv, words).env
    assert env.weights == {"a": 1.0, "b": 5.0}
    assert env.options == {"search": {"depth": 4, "width": 2}}
    assert env.retriever == Retriever(kind="dense", top_k=9)
    assert env.extra == {"x": 1}


class JudgedServer(APIServerConfig):
    judge: str = "none"
    bounds: dict[str, int] = {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_list", [False, True])
def test_servers_keep_their_class_under_files_and_flags(mode, is_list, tmp_path):
    server = JudgedServer(base_url="http://init:1/v1", api_key="k", judge="init")
    servers = [server] if is_list else server
    yaml = "openai: {timeout: 5, bounds: {a: 1}}"
    flags = [(), ("--openai.judge", "flag"), ("--openai.timeout", "7")]
    for words, judge, timeout in zip(flags, ["init", "flag", "init"], [5, 5, 7]):
        read_servers = read(
            mode, *words, servers=servers, tmp_path=tmp_path, yaml=yaml
        ).servers
        result = read_servers[0] if is_list else read_servers
        assert isinstance(result, JudgedServer)
        assert (result.judge, result.timeout, result.bounds) == (judge, timeout, {"a": 1})
        assert (result.api_key, result.base_url) == ("k", "http://init:1/v1")
    yaml = "openai: [{base_url: 'http://a/v1', judge: x}, {base_url: 'http://b/v1'}]"
    listed = read(mode, servers=servers, tmp_path=tmp_path, yaml=yaml).servers
    assert [(type(each), each.judge) for each in listed] == [
        (JudgedServer, "x"),
        (JudgedServer, "none"),
    ]


class NamedBaseline(ServerBaseline):
    region: str = "a"


def test_a_baseline_keeps_its_class_under_a_flag():
    result = read("serve", "--openai.timeout", "5", servers=NamedBaseline(region="b")).servers
    assert type(result) is NamedBaseline and (result.region, result.timeout) == ("b", 5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "servers", [Env.servers, [Env.servers], ServerBaseline(model_name="init")], ids=type
)
def test_server_flags_reach_the_server_in_every_mode(mode, servers):
    settings = read(mode, "--openai.base_url", "http://cli:2/v1", servers=servers)
    env = make_env(Env, settings)
    assert [s.config.base_url for s in env.server.servers] == ["http://cli:2/v1"]
    assert env.server.servers[0].config.model_name == "init"


def test_a_flag_for_one_of_several_servers_is_refused(tmp_path):
    two = [Env.servers, Env.servers]
    assert len(read("serve", servers=two).servers) == 2
    with pytest.raises(ConfigError, match="openai.model_name"):
        read("serve", "--openai.model_name", "x", servers=two)
    yaml = "openai:\n  - base_url: http://a/v1\n  - base_url: http://b/v1\n"
    listed = read("serve", tmp_path=tmp_path, yaml=yaml).servers
    assert [s.base_url for s in listed] == ["http://a/v1", "http://b/v1"]


def test_process_changes_defaults_that_flags_can_change_back():
    settings = read("process")
    assert settings.env.ensure_scores_are_not_same is False
    assert settings.env.include_messages is True
    assert settings.env.data_path_to_save_groups == "data/mine.jsonl"
    assert settings.env.use_wandb is False  # set by config_init
    back = read("process", "--env.include_messages", "false")
    assert back.env.include_messages is False
    assert read("serve").env.ensure_scores_are_not_same is True


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--env.total_steps", "-1"], "total_steps", -1),
        (["--env.total_steps=-1"], "total_steps", -1),
        (["--env.lower", "-1.5e-3"], "lower", -0.0015),
        (["--env.use_wandb", "True"], "use_wandb", True),
        (["--env.use_wandb"], "use_wandb", True),
        (
            ["--env.eval_handling", "LIMIT_TRAIN"],
            "eval_handling",
            EvalHandlingEnum.LIMIT_TRAIN,
        ),
        (["--env.stop_words", '["a", "b"]'], "stop_words", ["a", "b"]),
        (["--env.weights", '{"a": 0.5}'], "weights", {"a": 0.5}),
        (["--env.wandb_name", "None"], "wandb_name", None),
        (["--env.wandb_name", "a=b"], "wandb_name", "a=b"),
        (["--env.min_batch_allocation", "0.25"], "min_batch_allocation", 0.25),
    ],
)
def test_flags_have_their_original_spelling(words, field, value):
    assert getattr(read("serve", *words).env, field) == value


def test_manager_flags_have_no_namespace():
    settings = read(
        "serve", "--slurm", "false", "--testing", "true", "--max_n_completions", "3"
    )
    assert (settings.manager.slurm, settings.manager.testing) == (False, True)
    assert make_env(Env, settings).server.max_n_completions == 3


def test_a_yaml_file_may_name_a_path_below_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/ann")
    env = read("serve", tmp_path=tmp_path, yaml="env: {log_dir: ~/logs}").env
    assert env.log_dir == "/srv/ann/logs"


def test_an_empty_yaml_file_changes_nothing(tmp_path):
    assert read("serve", tmp_path=tmp_path, yaml="").env.group_size == 6


def test_help_shows_the_defaults_of_this_environment(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(Env, ["serve", "--help"])
    assert exit_.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "scored together [6]" in shown
    assert "--env.stop_words" in shown and "--openai.base_url" in shown
    assert "[http://init:1/v1]" in shown


def test_a_value_may_begin_with_a_dash_and_a_flag_may_not_be_one():
    settings = read("serve", "--env.lower", "-1", "--env.use_wandb", "--env.wandb_name", "x")
    assert (settings.env.lower, settings.env.use_wandb) == (-1.0, True)
    with pytest.raises(ConfigError, match="--env.lower: a value is missing"):
        read("serve", "--env.lower", "--env.use_wandb", "false")
    with pytest.raises(ConfigError, match="'-1' belongs to no flag"):
        read("serve", "--env.lower=2", "-1")


def test_the_name_of_an_environment_falls_back_to_its_class(tmp_path):
    assert make_env(Env, read("serve"))._atropos.label() == "mine"
    assert (
        make_env(Env, read("serve", "--env.wandb_name", "other"))._atropos.label() == "other"
    )


def test_an_unknown_field_in_code_warns_with_the_nearest_name():
    with pytest.warns(UserWarning, match=r"did you mean group_size\?"):
        BaseEnvConfig(gruop_size=3)


def test_the_package_exports_lazily():
    import atroposlib.envs as envs

    assert envs.BaseEnv is BaseEnv
    with pytest.raises(AttributeError):
        envs.Nothing


def test_a_yaml_file_may_hold_the_former_name_of_a_setting(tmp_path):
    yaml = "env:\n  trainer_wait: 12\n"
    assert read("serve", tmp_path=tmp_path, yaml=yaml).env.trainer_timeout_s == 12
    settings = read("serve", "--env.trainer_timeout_s", "13", tmp_path=tmp_path, yaml=yaml)
    assert settings.env.trainer_timeout_s == 13


def test_the_help_has_groups_types_and_defaults_by_value(capsys):
    with pytest.raises(SystemExit):
        main(Env, ["serve", "--help"])
    shown = capsys.readouterr().out
    places = [
        shown.index(f"\n{title}:\n") for title in ("settings of this environment", *GROUPS)
    ]
    assert places == sorted(places)
    assert "--env.group_size INT" in shown and "--env.lower FLOAT" in shown
    assert "--env.eval_handling STOP_TRAIN|LIMIT_TRAIN|NONE" in shown
    assert "[STOP_TRAIN]" in shown and "EvalHandlingEnum" not in shown
