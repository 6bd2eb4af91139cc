"""Merging of server settings; servers found through SLURM's variables, with a real scontrol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_cli import FailedExecutionException

from atroposlib.errors import ConfigError
from atroposlib.generation.configs import (
    APIServerConfig,
    OpenaiConfig,
    ServerBaseline,
    ServerManagerConfig,
    as_server_list,
    node_urls,
    resolve_openai_configs,
)
from atroposlib.generation.routing.manager import ServerManager

LOCAL = APIServerConfig(base_url="http://localhost:1/v1", api_key="k", model_name="m")


def test_defaults_are_those_of_the_original() -> None:
    added = {"sampling", "eval_sampling"}
    assert APIServerConfig().model_dump(exclude=added) == {
        "timeout": 1200,
        "num_max_requests_at_once": 512,
        "num_requests_for_eval": 64,
        "model_name": "default",
        "rolling_buffer_length": 1000,
        "server_type": "openai",
        "tokenizer_name": "none",
        "api_key": "",
        "base_url": "",
        "n_kwarg_is_ignored": False,
        "health_check": True,
    }
    assert ServerManagerConfig().model_dump() == {
        "slurm": False,
        "testing": False,
        "max_n_completions": 8,
        "proxy_url": None,
        "tool_parser": None,
    }
    assert OpenaiConfig is APIServerConfig


def test_a_single_server_keeps_its_address() -> None:
    assert as_server_list(LOCAL) == [LOCAL]
    assert resolve_openai_configs(LOCAL) == LOCAL
    assert resolve_openai_configs([LOCAL]) == [LOCAL]


def test_command_line_flags_override_a_single_server() -> None:
    flags = {"openai.base_url": "http://other:2/v1", "env.group_size": 4}
    server = resolve_openai_configs(LOCAL, {"base_url": "http://other:2/v1"}, {}, flags)
    assert isinstance(server, APIServerConfig)
    assert (server.base_url, server.api_key) == ("http://other:2/v1", "k")


def test_flags_override_yaml_and_yaml_overrides_defaults() -> None:
    (server,) = resolve_openai_configs(
        [LOCAL],
        {"model_name": "from flags", "timeout": 5},
        {"openai": {"model_name": "from yaml", "timeout": 5}},
        {"openai.model_name": "from flags"},
    )
    assert (server.model_name, server.timeout, server.api_key) == ("from flags", 5, "k")


def test_a_yaml_list_replaces_the_defaults() -> None:
    entries = [{"base_url": "http://a/v1"}, {"base_url": "http://b/v1"}]
    servers = resolve_openai_configs(LOCAL, {}, {"openai": entries}, {})
    assert [server.base_url for server in servers] == ["http://a/v1", "http://b/v1"]


def test_a_yaml_list_of_one_merges_like_a_mapping() -> None:
    (server,) = resolve_openai_configs(LOCAL, {}, {"openai": [{"timeout": 7}]}, {})
    assert (server.timeout, server.base_url) == (7, LOCAL.base_url)


@pytest.mark.parametrize("several", ["yaml", "defaults"])
def test_overriding_one_of_several_servers_is_rejected(several: str) -> None:
    pair = [{"base_url": "http://a/v1"}, {"base_url": "http://b/v1"}]
    yaml = {"openai": pair} if several == "yaml" else {}
    defaults = LOCAL if several == "yaml" else [LOCAL, LOCAL]
    with pytest.raises(ConfigError, match="openai.timeout: ambiguous, which of 2 servers"):
        resolve_openai_configs(defaults, {"timeout": 3}, yaml, {"openai.timeout": 3})


def test_a_server_baseline_stays_a_baseline_until_an_address_is_given() -> None:
    baseline = ServerBaseline(timeout=9, server_type="vllm")
    assert resolve_openai_configs(baseline) is baseline
    renamed = resolve_openai_configs(
        baseline, {"model_name": "m"}, {}, {"openai.model_name": "m"}
    )
    assert renamed == ServerBaseline(timeout=9, server_type="vllm", model_name="m")
    server = resolve_openai_configs(
        baseline, {"base_url": "http://a/v1"}, {}, {"openai.base_url": "http://a/v1"}
    )
    assert isinstance(server, APIServerConfig)
    assert (server.timeout, server.server_type, server.base_url) == (9, "vllm", "http://a/v1")


def test_default_values_do_not_override() -> None:
    assert resolve_openai_configs(LOCAL, APIServerConfig().model_dump(), {}, {}) == LOCAL


def test_merged_values_apply_without_the_original_flags() -> None:
    server = resolve_openai_configs(LOCAL, {**LOCAL.model_dump(), "model_name": "m"})
    assert server == LOCAL.model_copy(update={"model_name": "m"})


def test_an_empty_list_of_servers_is_rejected() -> None:
    with pytest.raises(ConfigError, match="empty list"):
        as_server_list([])


def test_ambiguous_flags_raise_the_former_error_class_too() -> None:
    two = [APIServerConfig(base_url="http://a/v1"), APIServerConfig(base_url="http://b/v1")]
    with pytest.raises(FailedExecutionException) as refusal:
        resolve_openai_configs(two, cli_passed_flags={"openai.model_name": "m"})
    assert refusal.value.exit_code == 2
    assert "openai.model_name" in str(refusal.value)


# --- generated addresses ---

LOCAL_ADDRESSES = [f"http://localhost:{port}/v1" for port in (9004, 9005, 9006, 9007)]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job on so many nodes; returns the arguments its scontrol was called with."""
    called = tmp_path / "called"

    def job(nodes: int, **variables: str) -> Path:
        scontrol = tmp_path / "scontrol"
        scontrol.write_text(
            f"#!{sys.executable}\n"
            "import pathlib, sys\n"
            f"pathlib.Path({str(called)!r}).write_text(repr(sys.argv[1:]))\n"
            f"print('\\n'.join(f'node{{i}}' for i in range({nodes})))\n"
        )
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        for name in ("NUM_TRAINING_NODES", "INFER_TP", "GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("SLURM_JOB_NODELIST", "node[0-9]; echo $(id)")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return called

    return job


def urls(manager: ServerManager) -> list[str]:
    return [server.base_url for server in manager.servers]


def test_nodes_after_the_training_nodes_run_servers() -> None:
    assert node_urls(["a"], 1, 1) == []
    assert node_urls(["a", "b"], 1, 4) == ["http://b:9000/v1", "http://b:9001/v1"]
    assert node_urls(["a", "b", "c"], 2, 8) == ["http://c:9000/v1"]
    assert len(node_urls(["a", "b", "c"], 1, 1)) == 16


def test_the_first_server_is_the_template_of_all_servers(slurm: Any) -> None:
    slurm(3, NUM_TRAINING_NODES="2", INFER_TP="4")
    template = APIServerConfig(
        base_url="http://given/v1",
        api_key="key",
        server_type="sglang",
        model_name="m",
        health_check=False,
        timeout=7,
    )
    manager = ServerManager([template, APIServerConfig()], slurm=True)
    assert urls(manager) == ["http://node2:9000/v1", "http://node2:9001/v1"]
    for server in manager.servers:
        assert server.config == template.model_copy(update={"base_url": server.base_url})


def test_a_baseline_is_spread_over_the_nodes_of_a_job(slurm: Any) -> None:
    slurm(2)
    manager = ServerManager(ServerBaseline(server_type="vllm", num_requests_for_eval=3))
    assert urls(manager) == [f"http://node1:{port}/v1" for port in range(9000, 9008)]
    assert {server.config.num_requests_for_eval for server in manager.servers} == {3}


def test_the_node_list_reaches_scontrol_as_one_argument_and_no_shell(slurm: Any) -> None:
    called = slurm(2)
    ServerManager([APIServerConfig(base_url="http://given/v1")], slurm=True)
    assert called.read_text() == "['show', 'hostnames', 'node[0-9]; echo $(id)']"


def test_a_job_of_one_node_leaves_the_servers_unchanged(
    slurm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    slurm(1)
    config = APIServerConfig(base_url="http://given/v1")
    (server,) = ServerManager([config], slurm=True).servers
    assert server.config is config and "using the servers as given" in caplog.text
    assert urls(ServerManager(ServerBaseline())) == LOCAL_ADDRESSES


def test_a_job_leaves_servers_unchanged_unless_slurm_is_enabled(slurm: Any) -> None:
    slurm(3)
    config = APIServerConfig(base_url="http://given/v1")
    (server,) = ServerManager([config]).servers
    assert server.config is config


def test_outside_a_job_the_servers_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    config = APIServerConfig(base_url="http://given/v1")
    (server,) = ServerManager([config], slurm=True).servers
    assert server.config is config
    assert urls(ServerManager(ServerBaseline())) == LOCAL_ADDRESSES


@pytest.mark.parametrize(
    ("variables", "servers"),
    [
        ({}, 8),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "4", "GPUS_PER_NODE": "2"}, 2),
    ],
)
def test_a_node_has_the_gpus_that_the_variables_name(
    slurm: Any, variables: dict[str, str], servers: int
) -> None:
    slurm(2, **variables)
    assert len(urls(ServerManager(ServerBaseline()))) == servers


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"INFER_TP": "eight"}, "INFER_TP: a whole number from 1, not 'eight'"),
        ({"INFER_TP": "0"}, "INFER_TP: a whole number from 1"),
        ({"INFER_TP": "16"}, "INFER_TP: a node has 8 GPUs, fewer than 16"),
        ({"NUM_TRAINING_NODES": "-1"}, "NUM_TRAINING_NODES: a whole number from 0"),
        ({"NUM_TRAINING_NODES": "2"}, "2 of 2 nodes train, which leaves none"),
    ],
)
def test_invalid_numbers_of_nodes_are_rejected(
    slurm: Any, variables: dict[str, str], says: str
) -> None:
    slurm(2, **variables)
    with pytest.raises(ConfigError, match=says):
        ServerManager(ServerBaseline())


def test_a_job_without_scontrol_raises(
    slurm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(2)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="scontrol cannot list its nodes"):
        ServerManager(ServerBaseline())
