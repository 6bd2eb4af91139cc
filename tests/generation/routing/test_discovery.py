"""Servers found through SLURM's variables, with a real executable in scontrol's place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from atroposlib.errors import ConfigError
from atroposlib.generation.configs import APIServerConfig, ServerBaseline
from atroposlib.generation.routing.discovery import node_urls
from atroposlib.generation.routing.manager import ServerManager

LOCAL = [f"http://localhost:{port}/v1" for port in (9004, 9005, 9006, 9007)]


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
        for name in ("NUM_TRAINING_NODES", "INFER_TP"):
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
    assert urls(ServerManager(ServerBaseline())) == LOCAL


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
    assert urls(ServerManager(ServerBaseline())) == LOCAL


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
