"""What config_init returned x subcommand x where the override stands: the same server answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from atroposlib.envs.base import APIServerConfig, BaseEnv, ServerBaseline
from atroposlib.envs.cli import main, read_settings
from atroposlib.envs.runtime.creation import make_env
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference
from tests.envs.old_style.shapes import NodesConfig, NodesEnv

MODES = ("serve", "process", "evaluate")
OLD_ADDRESS = "http://init:1/v1"
CONFIG_INIT = {
    "single": APIServerConfig(base_url=OLD_ADDRESS, model_name="init", timeout=7),
    "list": [APIServerConfig(base_url=OLD_ADDRESS, model_name="init", timeout=7)],
    "baseline": ServerBaseline(model_name="init", timeout=7),
}
EVERYWHERE = list(product(CONFIG_INIT, MODES, ("flags", "yaml", "both")))


class Nested(BaseModel):
    depth: int = 1
    names: dict[str, int] = {}


class MatrixConfig(NodesConfig):
    nested: Nested = Nested()
    numbers: list[int] = []
    anything: int | str | None = None
    badly_typed: str = Field(default=None, description="a default its annotation refuses")


class MatrixEnv(NodesEnv):
    """Made per case: ``servers`` and ``config`` are what config_init returns."""

    name = "matrix"
    env_config_cls = MatrixConfig
    servers: object = CONFIG_INIT["single"]
    config = {"group_size": 2, "use_wandb": False}

    @classmethod
    def config_init(cls):
        return MatrixConfig(**cls.config), cls.servers


def env_class(shape: str, **config) -> type[BaseEnv]:
    servers = CONFIG_INIT[shape]
    changes = {"servers": servers, "config": {**MatrixEnv.config, **config}}
    return type("EnvUnderTest", (MatrixEnv,), changes)


def words_of(source: str, values: dict[str, str], tmp_path) -> list[str]:
    """Flags, a file, or both: then the file holds another value, and the flags must win."""
    words = [f"--{name}={value}" for name, value in values.items()] if source != "yaml" else []
    if source != "flags":
        document: dict[str, dict] = {}
        for name, value in values.items():
            namespace, _, field = name.partition(".")
            shown = "http://yaml:2/v1" if field == "base_url" and source == "both" else value
            document.setdefault(namespace, {})[field] = shown
        path = tmp_path / "settings.yaml"
        path.write_text(json.dumps(document))  # every JSON document is a YAML document
        words += ["--config", str(path)]
    return words


@pytest.mark.parametrize(("shape", "mode", "source"), EVERYWHERE)
def test_the_address_reaches_the_server_wherever_it_was_given(shape, mode, source, tmp_path):
    values = {"openai.base_url": "http://right:9/v1", "env.max_token_length": "64"}
    env_cls = env_class(shape)
    settings = read_settings(env_cls, [mode, *words_of(source, values, tmp_path)])
    env = make_env(env_cls, settings)
    (server,) = env.server.servers
    assert server.config.base_url == "http://right:9/v1"
    assert (server.config.model_name, server.config.timeout) == ("init", 7)
    assert (env.config.max_token_length, env.config.group_size) == (64, 2)


@pytest.mark.parametrize(("shape", "mode"), list(product(CONFIG_INIT, MODES)))
def test_without_an_override_config_init_stands(shape, mode):
    env = make_env(env_class(shape), read_settings(env_class(shape), [mode]))
    addresses = [server.config.base_url for server in env.server.servers]
    if shape == "baseline":
        assert addresses == [f"http://localhost:{port}/v1" for port in range(9004, 9008)]
    else:
        assert addresses == [OLD_ADDRESS]
    assert {server.config.model_name for server in env.server.servers} == {"init"}


@pytest.mark.parametrize("mode", MODES)
def test_a_baseline_keeps_its_addresses_when_only_common_settings_change(mode):
    env_cls = env_class("baseline")
    env = make_env(env_cls, read_settings(env_cls, [mode, "--openai.model_name", "other"]))
    assert len(env.server.servers) == 4
    assert {server.config.model_name for server in env.server.servers} == {"other"}


# --- real runs: who was asked ------------------------------------------------------------


@pytest.fixture
def right():
    return FakeInference(reply=lambda prompt, i: f"answer {i}")


@pytest.fixture
def right_url(right):
    with right.running() as url:
        yield f"{url}/v1"


@pytest.mark.parametrize(
    ("shape", "mode", "source"),
    [
        (shape, mode, ("flags", "yaml", "both")[(i + j) % 3])
        for i, shape in enumerate(CONFIG_INIT)
        for j, mode in enumerate(MODES)
    ],
)
def test_a_run_calls_the_configured_server(
    shape, mode, source, right, right_url, inference_url, fake, tokenizer_dir, tmp_path, api
):
    env_cls = env_class(shape, tokenizer_name=tokenizer_dir)
    if shape != "baseline":
        wrong = APIServerConfig(base_url=inference_url, server_type="vllm")
        env_cls.servers = [wrong] if shape == "list" else wrong
    values = {
        "openai.base_url": right_url,
        "openai.server_type": "vllm",
        "env.total_steps": "1",
        "env.max_failures_in_a_row": "3",
        "env.rollout_server_url": api.url,
        "env.data_path_to_save_groups": str(tmp_path / "groups.jsonl"),
    }
    words = words_of(source, values, tmp_path)
    if mode == "serve":
        with api.trainer(batch_size=2, num_steps=1):
            main(env_cls, [mode, *words])
    else:
        main(env_cls, [mode, *words])
    assert right.requests and not fake.requests


# --- values -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["flags", "yaml"])
def test_values_of_every_kind_arrive(mode, source, tmp_path):
    values = {
        "env.total_steps": "-1",
        "env.inference_weight": "-1.0",
        "env.max_num_workers": -1,
        "env.eval_handling": "NONE",
        "env.numbers": "[1, -2]" if source == "flags" else [1, -2],
        "env.nested": '{"names": {"b": 2}}' if source == "flags" else {"names": {"b": 2}},
        "env.use_wandb": "True",
        "openai.health_check": "false",
        "openai.num_max_requests_at_once": "3",
    }
    env_cls = env_class("single", nested={"depth": 3, "names": {"a": 1}})
    settings = read_settings(env_cls, [mode, *words_of(source, values, tmp_path)])
    config, server = settings.env, settings.servers
    assert (config.total_steps, config.inference_weight, config.max_num_workers) == (
        -1,
        -1,
        -1,
    )
    assert (config.eval_handling.value, config.numbers) == ("NONE", [1, -2])
    assert config.nested == Nested(depth=3, names={"a": 1, "b": 2})
    assert config.use_wandb is True
    assert (server.health_check, server.num_max_requests_at_once) == (False, 3)


@pytest.mark.parametrize("mode", MODES)
def test_null_and_text_that_looks_like_another_type(mode):
    env_cls = env_class("single", wandb_name="mine", anything=4)
    null = read_settings(env_cls, [mode, "--env.wandb_name", "None", "--env.anything=None"])
    assert (null.env.wandb_name, null.env.anything) == (None, None)
    text = read_settings(env_cls, [mode, "--env.wandb_name=--x=1", "--openai.api_key", "None"])
    assert text.env.wandb_name == "--x=1"
    assert text.servers.api_key is None


def test_a_class_default_that_its_annotation_refuses_is_left_alone():
    assert read_settings(env_class("single"), ["serve"]).env.badly_typed is None


@pytest.mark.parametrize("mode", MODES)
def test_wandb_stays_off_where_config_init_says_so(mode):
    assert read_settings(env_class("single"), [mode]).env.use_wandb is False
    assert read_settings(env_class("single", use_wandb=True), [mode]).env.use_wandb is True


def test_settings_of_process_are_defaults_only():
    quiet = env_class("single", include_messages=False, data_path_to_save_groups="kept.jsonl")
    settings = read_settings(quiet, ["process"])
    assert settings.env.include_messages is True
    assert settings.env.data_path_to_save_groups == "kept.jsonl"
    again = read_settings(quiet, ["process", "--env.include_messages", "false"])
    assert again.env.include_messages is False
    assert read_settings(quiet, ["evaluate"]).env.include_messages is False


def test_settings_of_the_manager_reach_it_by_flag_and_by_file(tmp_path):
    env_cls = env_class("single")
    flags = ["--max_n_completions", "3", "--tool_parser=hermes"]
    env = make_env(env_cls, read_settings(env_cls, ["serve", *flags]))
    assert (env.server.max_n_completions, env.server.tool_parser) == (3, "hermes")
    path = tmp_path / "settings.yaml"
    path.write_text("proxy_url: http://proxy:1\nslurm: false\ntesting: true\n")
    env = make_env(env_cls, read_settings(env_cls, ["serve", "--config", str(path)]))
    assert (env.server.proxy_url, env.server.use_proxy) == ("http://proxy:1", True)
    assert type(env.server.servers[0]).__name__ == "ServerHarness"


# --- refusals -----------------------------------------------------------------------------


def test_several_servers_of_config_init_and_a_list_in_the_file(tmp_path):
    env_cls = env_class("single")
    env_cls.servers = [CONFIG_INIT["single"], CONFIG_INIT["single"]]
    with pytest.raises(ConfigError, match="openai.timeout: ambiguous, which of 2 servers"):
        read_settings(env_cls, ["process", "--openai.timeout", "3"])
    path = tmp_path / "settings.yaml"
    path.write_text("openai:\n  - base_url: http://only:1/v1\n")
    (only,) = read_settings(env_cls, ["process", "--config", str(path)]).servers
    assert (only.base_url, only.timeout) == ("http://only:1/v1", APIServerConfig().timeout)


def test_a_key_is_not_repeated_in_an_error():
    with pytest.raises(ConfigError) as refused:
        read_settings(
            env_class("single"), ["serve", '--openai.api_key=["secret"]', "--slurm=x"]
        )
    assert "secret" not in str(refused.value)


def test_a_command_line_inside_a_running_loop_names_the_alternative(capsys):
    async def notebook():
        main(env_class("single"), ["process"])

    with pytest.raises(SystemExit) as stopped:
        asyncio.run(notebook())
    assert stopped.value.code == 2
    assert "await its env_manager" in capsys.readouterr().err


def test_an_environment_that_overrides_cli_is_run_by_its_own(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "from tests.envs.old_style.shapes import NodesConfig, NodesEnv\n"
        "class Own(NodesEnv):\n"
        "    @classmethod\n"
        "    def cli(cls):\n"
        "        print('own')\n"
        "        super().cli()\n"
        "Own.cli()\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), "dance"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (2, "own\n")
    assert done.stderr == "error: invalid choice 'dance': one of serve, process, evaluate\n"
